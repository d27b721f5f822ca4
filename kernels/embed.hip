// embed: out[t] = scale * row tokens[t] of the token table as float32, and where wanted its
// RMSNorm, normed[t] = out[t] / sqrt(mean(out[t]^2) + eps) * weight.
//
//   table   (V, row bytes) blocks or numbers of FORMAT as in a GGUF file, aligned to 16; only
//           `codes` is used. If PACKED, the matrix (V, K) in the layout of packed.h
//   tokens  (T,) int32, each below V; below 0, where logits gave no token, counts as 0
//   weight  (K,) float32
//   out     (T, K) float32, aligned to 16
//   normed  (T, K) float32, f16, permuted or Q8, aligned to 16; `dtype` is a number of Dtype
//           (output.h), or -1 where no norm is wanted; Q8 and permuted need K to be a multiple of
//           32
//
// Threads: a block of 256 takes one token and 1024 columns at a time, four columns a thread. Raw
// blocks are decoded in LDS (raw.h); of a packed matrix each thread decodes its own. For the norm a
// thread reads back what it wrote itself. Grid (T). Limits: K whole blocks of FORMAT. Launched by
// rocmforge/gpu/ops/embed.py.
#include "output.h"
#include "raw.h"

struct EmbedArgs {
    PackedMatrix table;
    const int* tokens;
    const float* weight;
    float* out;
    Output normed;
    int columns, dtype;
    float eps, scale;
};

constexpr int kStep = 4 * kRawThreads;

// Stores four columns of a row from element `at` on, of which `left` are still in the row. All
// lanes of the wave must call.
template <Dtype kDtype>
DEVICE void store_columns(const Output& out, u64 at, int left, bool aligned, const float (&x)[4]) {
    if (kDtype == Dtype::Q8 || aligned) {
        store_as<kDtype>(out, at, x, left > 0);
        return;
    }
    UNROLL
    for (int i = 0; i < 4; ++i) {
        const float one[1] = {x[i]};
        if constexpr (kDtype != Dtype::Q8) store_as<kDtype>(out, at + i, one, i < left);
    }
}

#if PACKED
// Writes a row of the packed matrix; returns the sum of squares of what this thread wrote.
DEVICE float copy_row(const EmbedArgs& a, u64 token, u64 start, bool aligned) {
    using Weights = Packed<FORMAT>;
    constexpr int kColumns = Weights::kColumns, kWords = Weights::kWords;
    const Output out{a.out, nullptr, nullptr};
    const u64 first = token * (a.columns / kColumns);
    float squares = 0.0f;
    for (int column = 4 * thread_x(); column < a.columns; column += kStep) {
        const Weights::Unit unit = Weights::load(a.table, first + column / kColumns);
        const Weights::Scales scales = Weights::scales(unit);
        uint32_t words[kWords];
        Weights::unpack(unit, words);
        float x[4];
        UNROLL
        for (int j = 0; j < kWords; ++j) {
            if (column % kColumns / 4 != j) continue;
            constexpr int kWordsOfSub = kWords / Weights::kSubs;
            UNROLL
            for (int i = 0; i < 4; ++i) {
                const uint8_t code = static_cast<uint8_t>(words[j] >> 8 * i);
                const float number =
                    static_cast<float>(Weights::kSigned ? static_cast<int8_t>(code) : code);
                x[i] = scales.scale[j / kWordsOfSub] * number;
                if constexpr (Weights::kHasOffset) x[i] += scales.offset[j / kWordsOfSub];
                x[i] *= a.scale;
            }
        }
        UNROLL
        for (int i = 0; i < 4; ++i) squares += x[i] * x[i];
        store_columns<Dtype::F32>(out, start + column, a.columns - column, aligned, x);
    }
    return squares;
}
#else
// Writes a row of the table; returns the sum of squares of what this thread wrote.
DEVICE float copy_row(const EmbedArgs& a, u64 token, u64 start, bool aligned) {
    SHARED Raw<FORMAT> raw;
    const u64 row_bytes = static_cast<u64>(a.columns / raw.kColumns) * raw.kBytes;
    const uint8_t* row = a.table.codes + token * row_bytes;
    const Output out{a.out, nullptr, nullptr};
    float squares = 0.0f;
    for (int first = 0; first < a.columns; first += kRawColumns) {
        const uint8_t* from = row + static_cast<u64>(first / raw.kColumns) * raw.kBytes;
        const int columns = minimum(a.columns - first, kRawColumns);
        raw.fetch(from, columns);
        block_sync();
        for (int column = 4 * thread_x(); column < columns; column += kStep) {
            float x[4];
            raw.values(from, column, columns, x);
            UNROLL
            for (int i = 0; i < 4; ++i) {
                x[i] *= a.scale;
                squares += x[i] * x[i];
            }
            store_columns<Dtype::F32>(out, start + first + column, columns - column, aligned, x);
        }
    }
    return squares;
}
#endif

KERNEL(embed, EmbedArgs, kRawThreads) {
    SHARED float scratch[kRawThreads / WAVE];
    const u64 start = static_cast<u64>(block_x()) * a.columns;
    const bool aligned = a.columns % 4 == 0;
    const u64 token = maximum(a.tokens[block_x()], 0);
    const float squares = copy_row(a, token, start, aligned);
    if (a.dtype < 0) return;
    const float total = block_sum<kRawThreads>(squares, scratch);
    const float factor = reciprocal_sqrt(total / static_cast<float>(a.columns) + a.eps);
    for (int first = 0; first < a.columns; first += kStep) {
        const int column = first + 4 * thread_x(), left = a.columns - column;
        float x[4];
        UNROLL
        for (int i = 0; i < 4; ++i) {
            x[i] = i < left ? a.out[start + column + i] * (factor * a.weight[column + i]) : 0.0f;
        }
        if (a.dtype == static_cast<int>(Dtype::Q8)) {
            store_columns<Dtype::Q8>(a.normed, start + column, left, aligned, x);
        } else if (a.dtype == static_cast<int>(Dtype::F16)) {
            store_columns<Dtype::F16>(a.normed, start + column, left, aligned, x);
        } else if (a.dtype == static_cast<int>(Dtype::Permuted)) {
            const u64 own = permuted_row(block_x(), a.columns);
            store_columns<Dtype::Permuted>(a.normed, own + column, left, aligned, x);
        } else {
            store_columns<Dtype::F32>(a.normed, start + column, left, aligned, x);
        }
    }
}
