// Declarations of every op inside the namespace of the instruction set being compiled.
//
// What each op computes stands in its own file, what its arguments are in ops.h.
#pragma once

#include "ops.h"

#ifndef ROCMFORGE_ISA
#error "ROCMFORGE_ISA must name the instruction set's namespace"
#endif

namespace rocmforge::ROCMFORGE_ISA {

int64_t row_bytes(Format format, int64_t columns);
size_t tile_bytes(Format format, int64_t columns);
size_t matmul_workspace(int64_t tokens, int64_t columns, bool experts, bool exact);
void pack(const uint8_t* raw, Format format, Format packed, int64_t rows, int64_t columns,
          float factor, uint8_t* out, ThreadPool& pool);
void matmul(const MatmulArgs& args);
void dequantize(const uint8_t* raw, Format format, int64_t rows, int64_t columns, float* out,
                ThreadPool& pool);
void attention(const AttentionArgs& args);
void kv_append(const KvAppendArgs& args);
void rmsnorm(const NormArgs& args);
void layernorm(const NormArgs& args);
void rope(const RopeArgs& args);
void softmax(const float* x, int64_t rows, int64_t columns, float* out, ThreadPool& pool);
void swiglu(const float* gate, const float* up, int64_t n, Activation activation, float* out,
            ThreadPool& pool);
void gelu(const float* x, int64_t n, float* out, ThreadPool& pool);
void softcap(const float* x, int64_t n, float cap, float* out, ThreadPool& pool);
void route(const RouteArgs& args);
void add_experts(const AddExpertsArgs& args);
int64_t peak_reads(const uint8_t* data, int64_t bytes, int64_t repeats, ThreadPool& pool);
PeakProducts peak_products(bool bytes, ThreadPool& pool);

}  // namespace rocmforge::ROCMFORGE_ISA
