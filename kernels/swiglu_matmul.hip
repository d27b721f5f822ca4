// swiglu_matmul: out = h W^T + bias, or that is added to out, with h = gate * sigmoid(gate) * up: a
// GEMV for one to eight rows (decode).
//
//   gate, up  (T, K) float, aligned to 16
//   W         (N, K) of FORMAT_0, packed (packed.h)
//   bias      (N,) float, or null
//   out       (T, N) float, neither gate nor up; with `accumulate` it is added to
//
// Threads: a block takes kPassRows rows of W (dot_rows.h). It computes all of h on the way into
// LDS, as many columns at a time as LDS has room for, four neighbouring columns a thread. For
// quantized W, 8 neighbouring threads round 32 columns to int8, to the numbers that swiglu.hip
// would write.
// Grid (ceil(N / kPassRows)).
// Limits: T at most TOKENS; K whole blocks of FORMAT_0.
// Launched by rocmforge/gpu/ops/swiglu_matmul.py.
#include "product.h"
#include "q8.h"
#include "swiglu.h"

// A source of activations (activations.h).
struct GateUp {
    const float* gate;
    const float* up;

    template <class Format>
    static constexpr int kShare = Activations<Format>::kSlotColumns / 4;

    template <class Format>
    DEVICE void fill_slot(const Activations<Format>& to, int slot, const Span& span) const {
        const int part = thread_x() % kShare<Format>;
        const uint32_t index = span.index + 4 * part;
        const int left = span.left - 4 * part;
        const u32x4 g = four_floats(gate + index, left, span.columns);
        const u32x4 u = four_floats(up + index, left, span.columns);
        const float x[4] = {of(g.x, u.x), of(g.y, u.y), of(g.z, u.z), of(g.w, u.w)};
        if constexpr (Packed<Format>::kDense) {
            to.store_half(slot, part,
                          {bit_cast<uint32_t>(x[0]), bit_cast<uint32_t>(x[1]),
                           bit_cast<uint32_t>(x[2]), bit_cast<uint32_t>(x[3])});
        } else {
            // q8_round needs all lanes of a wave: each of them fills a slot, or none does.
            static_assert(kStep / Activations<Format>::kSlotUnits % (WAVE / kShare<Format>) == 0);
            const Q8Values<4> rounded = q8_round(x);
            const int (&codes)[4] = rounded.codes;
            to.store_word(slot, part, pack_codes(codes[0], codes[1], codes[2], codes[3]));
            if (part == 0) to.store_scales(slot, rounded.scale, rounded.sums);
        }
    }

  private:
    static DEVICE float of(uint32_t gate, uint32_t up) {
        return swiglu(bit_cast<float>(gate), bit_cast<float>(up));
    }
};

struct SwigluMatmulArgs {
    Product product;
    int rows;
    int accumulate;
    Batch<GateUp> batch;
};

KERNEL(swiglu_matmul, SwigluMatmulArgs, kThreads) {
    SHARED u32x4 lds[Activations<FORMAT_0>::kLds];
    multiply_rows<FORMAT_0>(a.product, a.rows, block_x(), a.accumulate, a.batch, lds);
}
