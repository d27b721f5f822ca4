// The quantized blocks of GGUF, as kernels/blocks.h has them, in the namespace of the instruction
// set that is compiled.
#pragma once

#include "format.h"
#include "simd.h"

#include "kernels/blocks.h"

namespace rocmforge::ROCMFORGE_ISA {

constexpr int kGroup = 32;  // columns handled at once; every sub-block divides it or equals it
constexpr int kQuads = kGroup / 4;
constexpr int kPlane = 64;  // bytes of a vector: four columns of 16 rows, or of 16 tokens

}  // namespace rocmforge::ROCMFORGE_ISA
