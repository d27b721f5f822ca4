// What a GEMV multiplies: up to TOKENS (at most 8) rows of x as they lie in memory. The build's
// constants are those of rocmforge/gpu/ops/dot_rows.py.
#pragma once

#include "device.h"

#if !defined(TOKENS) || !defined(LANES) || !defined(ROWS) || !defined(UNITS) || !defined(WAVES) || \
    !defined(SLOTS) || !defined(BUFFERS)
#error "TOKENS, LANES, ROWS, UNITS, WAVES, SLOTS and BUFFERS have to be passed by the build"
#endif

constexpr int kThreads = WAVES * WAVE;

// x (T, K) as it lies in memory. For quantized weights it is Q8 (rocmforge/gpu/arrays.py): codes
// (T, K) int8, scales (T, K / 32) float, sums (T, K / 32); or f16 alone, where matrix units
// multiply (gemv.h). For dense weights it is float. All are aligned to 16.
struct Input {
    const uint8_t* x;
    const float* scales;
    const uint32_t* sums;
};

// The activations of a launch: `tokens` rows of `columns` numbers.
#if !defined(EXPERTS)
struct Batch {
    Input in;
    int columns, tokens;

    DEVICE uint32_t row(int token) const { return token; }
};
#else
// Of experts: those that their jobs read (experts.h), `sharing` jobs one after another the same.
struct Batch {
    Input in;
    int columns, tokens, sharing;
#if GATHER
    const int* jobs;

    DEVICE uint32_t number(int token) const { return jobs[minimum(token, tokens - 1)]; }
#else
    int job;

    DEVICE uint32_t number(int) const { return job; }
#endif
    DEVICE uint32_t row(int token) const { return number(token) / static_cast<uint32_t>(sharing); }
};
#endif
