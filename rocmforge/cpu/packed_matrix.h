// A packed weight matrix and the memory that it lies in.
//
// Owns the bytes and knows their size; packed_layout.h and pack.cpp say what lies in them.
#pragma once

#include <sys/mman.h>

#include <new>
#include <stdexcept>

#include "format.h"

namespace rocmforge {

// Zeroed memory in huge pages where the system grants them: fewer TLB misses on weight streams.
class HugeBuffer {
  public:
    explicit HugeBuffer(size_t bytes) : bytes_(bytes ? bytes : 1) {
        data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (data_ == MAP_FAILED) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
        madvise(data_, bytes_, MADV_HUGEPAGE);
#endif
    }
    ~HugeBuffer() { munmap(data_, bytes_); }
    HugeBuffer(const HugeBuffer&) = delete;
    HugeBuffer& operator=(const HugeBuffer&) = delete;
    uint8_t* data() const { return static_cast<uint8_t*>(data_); }
    size_t bytes() const { return bytes_; }

  private:
    void* data_;
    size_t bytes_;
};

// A weight matrix of zeros, to be filled by Kernels::pack.
class PackedMatrix {
  public:
    // Throws std::length_error where the bytes do not fit a size_t.
    PackedMatrix(size_t tile_bytes, Format source, Format format, int64_t rows, int64_t columns)
        : tile_bytes_(tile_bytes),
          buffer_(product(tile_bytes, static_cast<size_t>((rows - 1) / kTileRows + 1))),
          rows_(rows),
          columns_(columns),
          source_(source),
          format_(format) {}
    PackedView view() const { return {buffer_.data(), tile_bytes_, rows_, columns_, format_}; }
    uint8_t* tile(int64_t first_row) {
        return buffer_.data() + tile_bytes_ * static_cast<size_t>(first_row / kTileRows);
    }
    Format source() const { return source_; }  // of the file
    Format format() const { return format_; }
    int64_t rows() const { return rows_; }
    int64_t columns() const { return columns_; }
    size_t nbytes() const { return buffer_.bytes(); }
    const char* format_name() const { return kFormatNames[static_cast<int>(source_)]; }

  private:
    static size_t product(size_t a, size_t b) {
        size_t bytes;
        if (__builtin_mul_overflow(a, b, &bytes)) throw std::length_error("matrix too large");
        return bytes;
    }

    size_t tile_bytes_;
    HugeBuffer buffer_;
    int64_t rows_, columns_;
    Format source_, format_;
};

}  // namespace rocmforge
