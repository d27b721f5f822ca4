// Products of 9 to 2,048 rows of activations with packed weights, on the matrix units: each weight
// is read once for TOKENS of them. Batched decode and prompts need them.
//
// Weights never lie in LDS. A lane loads groups of 32 columns of its rows, makes f16 of them
// (packed_halves.h) and passes them to the matrix units as they are (TileShare of tile.h): in a
// round, a wave multiplies kRound columns of TILES tiles of 16 rows with all tokens. The
// activations are in LDS, in the order in which the matrix units read them: batch_warpgroup.h is
// for Hopper's, batch_tiles.h for all others. Each has Activations, which bring a step's to LDS,
// and Sums.
//
// A block has ROW_WAVES times TILES tiles. SPLITS waves share the same tiles: each takes COLUMNS
// columns of a step, and their sums meet in LDS. Registers hold the weights of DEPTH rounds, and
// LDS the activations of STAGES steps: one in use, the others on their way. Several blocks may
// share the steps of the same rows (each_part of batch_parts.h). The last one to end adds the sums
// of all, in their order; of two, the order makes no difference.
#pragma once

#include "batch_parts.h"
#if defined(ROCMFORGE_WARPGROUP)
#include "batch_warpgroup.h"
#else
#include "batch_tiles.h"
#endif

static_assert(16 * kLds >= 4 * (SPLITS - 1) * kBandFloats, "room for the sums");

// What a block has in LDS: 48 KB at most, or as much as the launch says, LDS_BYTES.
#if !defined(LDS_BYTES)
#define ROCMFORGE_BATCH_LDS(name) SHARED u32x4 name[kLds]
#else
static_assert(16 * kLds == LDS_BYTES);
#define ROCMFORGE_BATCH_LDS(name) SHARED_BY_LAUNCH(u32x4, name, kLds)
#endif

DEVICE int split() {
    return SPLITS == 1 ? 0 : static_cast<int>(wave()) / ROW_WAVES;
}

// The sums of a part, over the block's waves and over all parts of its band. `tokens` tells whether
// the block has a token and which row of x it is, as Neighbours do; all threads call its fetch()
// before, when the first weights are on their way. Weights have `rows` rows. Returns whether this
// wave has sums to store. Only the first kUsed tiles of tokens are multiplied.
template <class Format, int kUsed = kTokenTiles, class Tokens>
DEVICE bool compute(const Batch& b, const Part& part, const Tokens& tokens, const Lines& from,
                    int rows, Sums& sums, u32x4* lds) {
    SHARED uint32_t word;
    const int begin = part.begin, count = part.end - begin;
    // Past the last one, the last one comes again.
    const auto step_of = [&](int i) { return begin + minimum(i, count - 1); };
    const auto round_of = [&](int i) {
        return (step_of(i / kRounds) * SPLITS + split()) * kRounds + i % kRounds;
    };
    const typename Share<Format>::Rows own_rows(from, rows, b.columns);
    Share<Format> ahead[DEPTH];
    UNROLL
    for (int i = 0; i < DEPTH; ++i) ahead[i].fetch(from, own_rows, b.columns, round_of(i));
    await_earlier();
    tokens.fetch();
    Activations<Tokens> x(b, tokens);
    const auto stage_of = [&](int i) { return lds + i % STAGES * kStage; };
    UNROLL
    for (int i = 0; i < STAGES - 1; ++i) x.start(step_of(i), stage_of(i));
    x.arrive(stage_of(0));
    sums.clear();
    for (int first = 0; first < count * kRounds; first += kUnrolled) {
        UNROLL
        for (int u = 0; u < kUnrolled; ++u) {
            const int i = first + u, step = i / kRounds;
            if (step >= count) break;
            if (u % kRounds == 0) {
                block_sync();
                x.start(step_of(step + STAGES - 1), stage_of(step + STAGES - 1));
            }
            const int own = (split() * kRounds + u % kRounds) * kRoundPieces;
            sums.template multiply<kUsed>(ahead[u % DEPTH], stage_of(step) + own);
            ahead[u % DEPTH].fetch(from, own_rows, b.columns, round_of(i + DEPTH));
            if (u % kRounds == kRounds - 1) x.arrive(stage_of(step + 1));
        }
    }
    // Of steps past the last one: sums or the next part's activations go where they lie.
    if constexpr (SPLITS > 1 || kEven || STAGES > 2) Transfer::wait<0>();
    block_sync();
    float* floats = reinterpret_cast<float*>(lds);
    const int row_wave = wave() % ROW_WAVES;
    if constexpr (SPLITS > 1) {
        if (split() > 0) sums.write(floats + (wave() - ROW_WAVES) * kWaveFloats);
        block_sync();
        if (split() == 0) {
            UNROLL
            for (int i = 1; i < SPLITS; ++i) {
                sums.add(floats + ((i - 1) * ROW_WAVES + row_wave) * kWaveFloats);
            }
        }
        if constexpr (kEven) block_sync();  // the next part's activations go where the sums lie
    }
    if (count < steps_of(b.columns)) {
        const Sharers sharers(b, part.band);
        const u64 token_tiles = (b.tokens + TOKENS - 1) / TOKENS, place = token_tiles * kBandFloats;
        float* const sums_at = b.partials + block_x() * kBandFloats + row_wave * kWaveFloats;
        const auto write = [&] {
            if (split() == 0) sums.write(sums_at + sharers.own * place);
        };
        uint32_t* const arrivals = b.arrivals + part.band * token_tiles + block_x();
        if (!sharers.meet(arrivals, &word, write)) return false;
        if (split() == 0) {
            if (!sharers.one_place) sums.clear();
            const float* const first = sums_at + sharers.first * place;
            for (int i = 0; i < sharers.places(); ++i) sums.add(first + i * place);
        }
    }
    return split() == 0;
}
