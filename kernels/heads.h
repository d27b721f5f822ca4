// How lanes share heads, and how they rotate and normalize them. SPAN neighbouring lanes hold one
// head.
//
// SPAN is 8, 16 or 32, so that a head lies within one wave, of 32 or of 64 lanes. Lane i of the
// head holds its vectors i, i + SPAN, … of VECTOR dims, ITEMS of them, all in registers.
// rocmforge/gpu/ops/heads.py chooses these constants. A block has kHeads heads of one token; its
// grid is (tokens, ceil(heads / kHeads)).
#pragma once

#include "output.h"

#if !defined(THREADS) || !defined(SPAN) || !defined(ITEMS) || !defined(VECTOR)
#error "THREADS, SPAN, ITEMS and VECTOR have to be passed by the build"
#endif

static_assert((SPAN == 8 || SPAN == 16 || SPAN == 32) && THREADS % 64 == 0);
static_assert(VECTOR == 1 || VECTOR == 4);

constexpr int kHeads = THREADS / SPAN;

// A lane's part of a head.
using Head = float[ITEMS][VECTOR];

// Number of this lane's head among the heads of its token.
DEVICE int head_index() {
    return static_cast<int>(block_y()) * kHeads + static_cast<int>(thread_x()) / SPAN;
}
// First dim of a lane's vector i.
DEVICE int head_dim(int i) {
    return (static_cast<int>(thread_x()) % SPAN + i * SPAN) * VECTOR;
}

// Loads the lane's part of the `dims` floats from `from` on; zeros where it has none.
DEVICE void load_head(const float* from, int dims, bool valid, Head& x) {
    UNROLL
    for (int i = 0; i < ITEMS; ++i) {
        UNROLL
        for (int j = 0; j < VECTOR; ++j) x[i][j] = 0.0f;
        if (valid && head_dim(i) < dims) load_floats(from + head_dim(i), x[i]);
    }
}
DEVICE void store_head(float* to, int dims, const Head& x) {
    UNROLL
    for (int i = 0; i < ITEMS; ++i) {
        if (head_dim(i) < dims) store_floats(to + head_dim(i), x[i]);
    }
}

// ---- rotation: pairs (2i, 2i + 1) if kInterleaved, else (i, i + rotated / 2) --------------------

// Whether the two dims of a pair lie in one vector.
template <bool kInterleaved>
constexpr bool kOwnPartners = kInterleaved && VECTOR == 4;

// First dim of the vector that holds the partners of the vector at `dim`.
template <bool kInterleaved>
DEVICE int partner_dim(int dim, int rotated) {
    if constexpr (kInterleaved) return dim ^ 1;
    return dim < rotated / 2 ? dim + rotated / 2 : dim - rotated / 2;
}

// Loads the partners of the lane's dims, from a head or from the weights of its norm.
template <bool kInterleaved>
DEVICE void load_partners(const float* from, int rotated, bool valid, Head& y) {
    UNROLL
    for (int i = 0; i < ITEMS; ++i) {
        UNROLL
        for (int j = 0; j < VECTOR; ++j) y[i][j] = 0.0f;
        if constexpr (!kOwnPartners<kInterleaved>) {
            if (valid && head_dim(i) < rotated) {
                load_floats(from + partner_dim<kInterleaved>(head_dim(i), rotated), y[i]);
            }
        }
    }
}

// cos and sin of the angles of one token by which the lane's dims rotate, the same for every head.
template <bool kInterleaved>
struct Angles {
    static constexpr int kCount = kOwnPartners<kInterleaved> ? VECTOR / 2 : VECTOR;
    float cos[ITEMS][kCount], sin[ITEMS][kCount];

    // `cosines` and `sines` are tables of (context, rotated / 2).
    DEVICE Angles(const float* cosines, const float* sines, int position, int rotated) {
        const int half = rotated / 2;
        const u64 row = static_cast<u64>(position) * half;
        UNROLL
        for (int i = 0; i < ITEMS; ++i) {
            const int dim = head_dim(i);
            UNROLL
            for (int j = 0; j < kCount; ++j) cos[i][j] = sin[i][j] = 0.0f;
            if (dim >= rotated) continue;
            const int pair = kInterleaved ? dim / 2 : (dim < half ? dim : dim - half);
            load_floats(cosines + row + pair, cos[i]);
            load_floats(sines + row + pair, sin[i]);
        }
    }
};

// Rotates x, whose partners are y.
template <bool kInterleaved>
DEVICE void rotate(const Angles<kInterleaved>& angles, int rotated, const Head& y, Head& x) {
    UNROLL
    for (int i = 0; i < ITEMS; ++i) {
        const int dim = head_dim(i);
        if (dim >= rotated) continue;
        if constexpr (kOwnPartners<kInterleaved>) {
            UNROLL
            for (int j = 0; j < Angles<kInterleaved>::kCount; ++j) {
                float &a = x[i][2 * j], &b = x[i][2 * j + 1];
                const float turned = a * angles.cos[i][j] - b * angles.sin[i][j];
                b = a * angles.sin[i][j] + b * angles.cos[i][j];
                a = turned;
            }
        } else {
            const bool first = kInterleaved ? dim % 2 == 0 : dim < rotated / 2;
            UNROLL
            for (int j = 0; j < VECTOR; ++j) {
                const float sine = first ? -angles.sin[i][j] : angles.sin[i][j];
                x[i][j] = x[i][j] * angles.cos[i][j] + sine * y[i][j];
            }
        }
    }
}

// The sum of a lane's items, which it overwrites, in the order in which wave_sum adds those of as
// many lanes: so a sum over a head does not depend on SPAN.
DEVICE float halved_sum(float (&items)[ITEMS]) {
    static_assert(ITEMS <= 32);
    UNROLL
    for (int half = 16; half > 0; half /= 2) {
        UNROLL
        for (int i = 0; i < half && i + half < ITEMS; ++i) items[i] += items[i + half];
    }
    return items[0];
}

// Head norm: divides x and its partners by sqrt(mean(x^2) + eps) and multiplies them with the
// weights. Where `weight` is null, nothing changes. All lanes of the wave must call.
template <bool kInterleaved>
DEVICE void normalize(const float* weight, int dims, int rotated, float eps, Head& x,
                      Head& partners) {
    Head own, theirs;
    load_head(weight, dims, weight != nullptr, own);
    load_partners<kInterleaved>(weight, rotated, weight != nullptr, theirs);
    float squares[ITEMS] = {};
    UNROLL
    for (int i = 0; i < ITEMS; ++i) {
        UNROLL
        for (int j = 0; j < VECTOR; ++j) squares[i] += x[i][j] * x[i][j];
    }
    const float mean = wave_sum<SPAN>(halved_sum(squares)) / static_cast<float>(dims);
    const float inverse = reciprocal_sqrt(mean + eps);
    if (weight == nullptr) return;
    UNROLL
    for (int i = 0; i < ITEMS; ++i) {
        UNROLL
        for (int j = 0; j < VECTOR; ++j) {
            x[i][j] *= inverse * own[i][j];
            partners[i][j] *= inverse * theirs[i][j];
        }
    }
}
