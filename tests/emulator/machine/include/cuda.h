#pragma once
#include "../device.h"
using CUtensorMap = emulator::TensorMap;
