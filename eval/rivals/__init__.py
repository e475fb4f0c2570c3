"""The methods of other papers, on this project's kernels: what differs is how kernels are found and chosen."""
