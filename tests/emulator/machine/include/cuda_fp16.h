#pragma once
#include "../device.h"
using half = __half;
using half2 = __half2;
