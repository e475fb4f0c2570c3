"""The evaluation harness: suites, peer systems, measurement, reports. Imports vortex; vortex never imports it."""
