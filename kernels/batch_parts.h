// How the blocks of batch_rows.h share the work: which steps of which bands each of them computes,
// and where they leave their sums. SHARING says how:
//   OWN    each band has blocks of its own, which share its steps
//   EVEN   all blocks share the steps of all bands, so that one may have parts of two bands
//   PAIRS  likewise, and two blocks that share a band have one place for their sums
#pragma once

#include "batch.h"

// Steps begin to end - 1 of a band: what a block computes at a time.
struct Part {
    int band, begin, end;
};

DEVICE int steps_of(int columns) {
    return (columns + kStep - 1) / kStep;
}

// x / y of numbers that are not negative. Unsigned numbers need half of the instructions.
DEVICE int quotient(int x, int y) {
    return static_cast<int>(static_cast<unsigned>(x) / static_cast<unsigned>(y));
}

// Calls f(part) for each part of this block. Without kEven, the blocks of a band share its steps:
// grid (tiles of tokens, bands, blocks). With kEven, all blocks together walk along the
// steps of one band after another, each as far as the others, so that a block may have the end of a
// band and the beginning of the next, and whole bands between them: grid (tiles of tokens, blocks).
template <class Function>
DEVICE void each_part(const Batch& b, Function f) {
    const int steps = steps_of(b.columns);
    if constexpr (!kEven) {
        const int number = block_z();
        f(Part{static_cast<int>(block_y()), steps * number / b.blocks,
               steps * (number + 1) / b.blocks});
    } else {
        const int all = steps * b.bands, own = block_y();
        const int end = quotient(all * (own + 1), b.blocks);
        for (int at = quotient(all * own, b.blocks);;) {
            const int band = quotient(at, steps), start = band * steps;
            const int stop = minimum(end, start + steps);
            f(Part{band, at - start, stop - start});
            at = stop;
            if (at >= end) return;
        }
    }
}

// The blocks that share a band, `count` of them, follow one another. Places for their sums do, too:
// `first` and `own` are those of the first one and of this one. With kEven they go on from a block
// to the next, and from a band to the next. Where bands are more than blocks, only two blocks that
// follow one another share a band: places 2 i and 2 i + 1 are of the end of block i and of the
// beginning of the next one. With kPairs, two blocks that share a band have one place for both.
struct Sharers {
    int count, first, own;
    bool one_place;

    DEVICE Sharers(const Batch& b, int band) {
        if constexpr (!kEven) {
            count = b.blocks;
            first = band * b.blocks;
            own = first + static_cast<int>(block_z());
            one_place = false;
        } else {
            const int steps = steps_of(b.columns), all = steps * b.bands, start = band * steps;
            const int block = quotient((start + 1) * b.blocks - 1, all);
            count = quotient((start + steps) * b.blocks - 1, all) + 1 - block;
            one_place = kPairs && count == 2;
            first = b.blocks < b.bands ? block * (kPairs ? 1 : 2) : band + block;
            own = first + (one_place ? 0 : static_cast<int>(block_y()) - block);
        }
    }

    DEVICE int places() const { return one_place ? 1 : count; }

    // Returns true in the block that adds the sums. Where each block has a place, each calls
    // write(). Where two have one place, only the first to come does. `word` is one in LDS.
    template <class Write>
    DEVICE bool meet(uint32_t* arrivals, uint32_t* word, Write write) const {
        if (!one_place) {
            write();
            return last_to_arrive(arrivals, count, word);
        }
        if (first_of_two(arrivals, word)) {
            write();
            leave(arrivals);
            return false;
        }
        take(arrivals, word);
        return true;
    }
};
