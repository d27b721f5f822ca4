// Device and pinned memory: every allocation is a malloc of its own, so that AddressSanitizer can
// guard it, and every copy is checked against the bounds. Without AddressSanitizer large ones are
// mapped, so that no page of them is filled before it is used. It knows no stream's inside.
#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>

#include "standin.h"

namespace standin {
namespace {

struct Allocation {
    size_t bytes;
    int device;  // or kPinned
};
constexpr int kPinned = -1;
constexpr size_t kAlignment = 256;
constexpr int kUnwritten = 0xa5;  // of every byte: nothing may depend on it
#if defined(STANDIN_ASAN)
constexpr size_t kMapped = ~size_t{0};
#else
constexpr size_t kMapped = 1 << 20;  // bytes of an allocation that is mapped, at least
#endif
constexpr size_t kWindow = 4 << 20;

std::map<uintptr_t, Allocation>& allocations() {
    static std::map<uintptr_t, Allocation> all;
    return all;
}

const Allocation* allocation_of(const void* address, size_t bytes) {
    const auto at = reinterpret_cast<uintptr_t>(address);
    auto next = allocations().upper_bound(at);
    if (next == allocations().begin()) return nullptr;
    const auto& [start, allocation] = *--next;
    const size_t offset = at - start;
    const bool inside = offset <= allocation.bytes && bytes <= allocation.bytes - offset;
    return inside ? &allocation : nullptr;
}

// A file in memory of unwritten bytes, of which mappings have copies of the pages they write.
int unwritten_file() {
    static const int file = [] {
        const int made = memfd_create("standin-unwritten", MFD_CLOEXEC);
        if (made < 0 || ftruncate(made, kWindow)) abort();
        void* all = mmap(nullptr, kWindow, PROT_READ | PROT_WRITE, MAP_SHARED, made, 0);
        if (all == MAP_FAILED) abort();
        std::memset(all, kUnwritten, kWindow);
        munmap(all, kWindow);
        return made;
    }();
    return file;
}

void* map_unwritten(size_t bytes) {
    constexpr int kAccess = PROT_READ | PROT_WRITE, kWay = MAP_PRIVATE | MAP_NORESERVE;
    void* whole = mmap(nullptr, bytes, PROT_NONE, kWay | MAP_ANONYMOUS, -1, 0);
    if (whole == MAP_FAILED) return nullptr;
    for (size_t at = 0; at < bytes; at += kWindow) {
        void* place = static_cast<char*>(whole) + at;
        const size_t length = std::min(kWindow, bytes - at);
        if (mmap(place, length, kAccess, kWay | MAP_FIXED, unwritten_file(), 0) == MAP_FAILED) {
            munmap(whole, bytes);
            return nullptr;
        }
    }
    return whole;
}

Error allocate(void** address, size_t bytes, int device) {
    void* memory = nullptr;
    if (bytes >= kMapped) {
        memory = map_unwritten(bytes);
        if (memory == nullptr) return kOutOfMemory;
    } else {
        if (posix_memalign(&memory, kAlignment, bytes)) return kOutOfMemory;
        std::memset(memory, kUnwritten, bytes);
    }
    allocations()[reinterpret_cast<uintptr_t>(memory)] = {bytes, device};
    *address = memory;
    return kSuccess;
}

Error release(void* address, bool pinned) {
    if (address == nullptr) return kSuccess;
    const Error finished = finish_all();
    const auto found = allocations().find(reinterpret_cast<uintptr_t>(address));
    if (found == allocations().end()) return kInvalidValue;
    if ((found->second.device == kPinned) != pinned) return kInvalidValue;
    const size_t bytes = found->second.bytes;
    allocations().erase(found);
    if (bytes >= kMapped) {
        munmap(address, bytes);
    } else {
        std::free(address);
    }
    return finished;
}

// The values of hipMemcpyKind.
enum Kind { kHostToHost, kHostToDevice, kDeviceToHost, kDeviceToDevice, kDefault };

Error check_copy(const void* to, const void* from, size_t bytes, Kind kind) {
    if (kind < kHostToHost || kind > kDefault) return kInvalidMemcpyDirection;
    const bool to_device = kind == kHostToDevice || kind == kDeviceToDevice;
    const bool from_device = kind == kDeviceToHost || kind == kDeviceToDevice;
    if (to_device && !is_device_memory(to, bytes)) return kInvalidValue;
    if (from_device && !is_device_memory(from, bytes)) return kInvalidValue;
    return kSuccess;
}

Error copy(void* to, const void* from, size_t bytes, Kind kind) {
    const Error wrong = check_copy(to, from, bytes, kind);
    if (wrong == kSuccess) std::memmove(to, from, bytes);
    return wrong;
}

}  // namespace

bool is_device_memory(const void* address, size_t bytes) {
    const Allocation* allocation = allocation_of(address, bytes);
    return allocation && allocation->device != kPinned;
}

bool is_pinned_memory(const void* address, size_t bytes) {
    const Allocation* allocation = allocation_of(address, bytes);
    return allocation && allocation->device == kPinned;
}

size_t used_bytes(int device) {
    size_t used = 0;
    for (const auto& [start, allocation] : allocations()) {
        if (allocation.device == device) used += allocation.bytes;
    }
    return used;
}

}  // namespace standin

using namespace standin;

namespace {

Error allocate_on_device(void** address, size_t bytes) {
    *address = nullptr;
    if (capturing()) return kCaptureUnsupported;
    if (bytes == 0) return kSuccess;
    const std::vector<Device> all = devices();
    if (current_device() >= static_cast<int>(all.size())) return kInvalidDevice;
    const size_t total = all[static_cast<size_t>(current_device())].memory_bytes;
    const size_t used = used_bytes(current_device());
    if (used > total || bytes > total - used) return kOutOfMemory;
    return allocate(address, bytes, current_device());
}

}  // namespace

ENTRY Error hipMalloc(void** address, size_t bytes) {
    ENTER(hipMalloc);
    return allocate_on_device(address, bytes);
}

ENTRY Error hipExtMallocWithFlags(void** address, size_t bytes, unsigned) {
    ENTER(hipExtMallocWithFlags);
    return allocate_on_device(address, bytes);
}

ENTRY Error hipFree(void* address) {
    ENTER(hipFree);
    return capturing() ? kCaptureUnsupported : release(address, false);
}

ENTRY Error hipHostMalloc(void** address, size_t bytes, unsigned) {
    ENTER(hipHostMalloc);
    *address = nullptr;
    if (capturing()) return kCaptureUnsupported;
    return bytes ? allocate(address, bytes, kPinned) : kSuccess;
}

ENTRY Error hipHostFree(void* address) {
    ENTER(hipHostFree);
    return capturing() ? kCaptureUnsupported : release(address, true);
}

ENTRY Error hipMemcpy(void* to, const void* from, size_t bytes, Kind kind) {
    ENTER(hipMemcpy);
    if (capturing()) return kCaptureUnsupported;
    const Error finished = finish_all();
    return finished ? finished : copy(to, from, bytes, kind);
}

// As on a GPU, a copy between the device and memory that is not pinned waits for the host's part.
ENTRY Error hipMemcpyAsync(void* to, const void* from, size_t bytes, Kind kind, Stream* stream) {
    ENTER(hipMemcpyAsync);
    if (const Error wrong = check_copy(to, from, bytes, kind)) return wrong;
    const Error queued =
        enqueue(stream, [to, from, bytes, kind] { return copy(to, from, bytes, kind); });
    const bool waits = (kind == kHostToDevice && !is_pinned_memory(from, bytes)) ||
                       (kind == kDeviceToHost && !is_pinned_memory(to, bytes));
    return queued == kSuccess && waits && !capturing() ? finish_all() : queued;
}

ENTRY Error hipMemset(void* to, int byte, size_t bytes) {
    ENTER(hipMemset);
    if (capturing()) return kCaptureUnsupported;
    const Error finished = finish_all();
    if (finished) return finished;
    if (!is_device_memory(to, bytes)) return kInvalidValue;
    std::memset(to, byte, bytes);
    return kSuccess;
}

ENTRY Error hipMemsetAsync(void* to, int byte, size_t bytes, Stream* stream) {
    ENTER(hipMemsetAsync);
    if (!is_device_memory(to, bytes)) return kInvalidValue;
    return enqueue(stream, [to, byte, bytes] {
        if (!is_device_memory(to, bytes)) return kInvalidValue;
        std::memset(to, byte, bytes);
        return kSuccess;
    });
}
