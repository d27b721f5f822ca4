// Modules and launches. A code object is a shared library made by the stand-in's hiprtc: loading
// it is dlopen, a launch runs its blocks one after another. It knows no kernel.
#include <dlfcn.h>
#include <elf.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>

#include "fibers.h"
#include "standin.h"

namespace standin {

struct Function {
    std::string name;
    void (*kernel)(const void* arguments);
    unsigned threads;    // of a block, as the kernel's KERNEL says
    size_t arguments;    // bytes of its argument struct
    unsigned wave_size;  // of the device that the module was loaded on
    int device;          // its number
};

struct Module {
    void* library;
    unsigned wave_size;
    int device;
    std::map<std::string, std::unique_ptr<Function>> functions;
};

namespace {

std::set<Module*> modules;
std::set<const Function*> functions;

constexpr unsigned kMaxThreads = 1024;

// A library's size follows from where its section table lies: the linker puts it last.
size_t library_bytes(const void* image) {
    Elf64_Ehdr header;
    std::memcpy(&header, image, sizeof header);
    if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) || header.e_type != ET_DYN) return 0;
    return header.e_shoff + size_t{header.e_shnum} * header.e_shentsize;
}

std::string write_library(const void* image, size_t bytes) {
    const char* folder = std::getenv("TMPDIR");
    std::string path = std::string(folder ? folder : "/tmp") + "/standin-module-XXXXXX";
    const int file = mkstemp(path.data());
    if (file < 0) return {};
    const bool written = write(file, image, bytes) == static_cast<ssize_t>(bytes);
    close(file);
    if (!written) unlink(path.c_str());
    return written ? path : std::string();
}

Error run(const Function& function, Dim grid, const std::vector<char>& arguments) {
    BlockRun block = {
        function.kernel,  arguments.data(),   {0, 0, 0},       grid,
        function.threads, function.wave_size, function.device, function.wave_size == 64};
    if (std::getenv("STANDIN_TURN")) block.reverse = !block.reverse;
    for (unsigned z = 0; z < grid.z; ++z) {
        for (unsigned y = 0; y < grid.y; ++y) {
            for (unsigned x = 0; x < grid.x; ++x) {
                block.block = {x, y, z};
                const std::string wrong = run_block(block);
                if (wrong.empty()) continue;
                explain("kernel " + function.name + ", block (" + std::to_string(x) + ", " +
                        std::to_string(y) + ", " + std::to_string(z) + "): " + wrong);
                return kLaunchFailure;
            }
        }
    }
    if (Clocks* clocks = planted_clocks()) clocks->device += clocks->kernel;
    return kSuccess;
}

// The list that `extra` points to: (1, buffer, 2, &size, 3).
bool read_extra(void** extra, const void*& buffer, size_t& bytes) {
    constexpr uintptr_t kPointer = 1, kSize = 2, kEnd = 3;
    buffer = nullptr;
    bytes = 0;
    if (extra == nullptr) return false;
    for (;; extra += 2) {
        const auto mark = reinterpret_cast<uintptr_t>(*extra);
        if (mark == kEnd) return buffer != nullptr;
        if (mark == kPointer) {
            buffer = extra[1];
        } else if (mark == kSize) {
            bytes = *static_cast<const size_t*>(extra[1]);
        } else {
            return false;
        }
    }
}

}  // namespace
}  // namespace standin

using namespace standin;

ENTRY Error hipModuleLoadData(Module** out, const void* image) {
    ENTER(hipModuleLoadData);
    *out = nullptr;
    if (image == nullptr) return kInvalidValue;
    const size_t bytes = library_bytes(image);
    if (bytes == 0) return kInvalidImage;
    const std::vector<Device> all = devices();
    const int most = std::min(static_cast<int>(all.size()), kMostDevices);
    if (current_device() >= most) return kInvalidDevice;
    const Device& device = all[static_cast<size_t>(current_device())];
    const std::string path = write_library(image, bytes);
    if (path.empty()) return kSharedObjectInitFailed;
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    // A library that is loaded needs its file no more; AddressSanitizer reads line numbers from it.
    if (!std::getenv("STANDIN_ASAN")) unlink(path.c_str());
    if (library == nullptr) {
        explain(dlerror());
        return kSharedObjectInitFailed;
    }
    const auto* architecture = static_cast<const char*>(dlsym(library, "standin_architecture"));
    auto* host = static_cast<const HostInterface**>(dlsym(library, "rocmforge_host"));
    const std::string wanted = device.architecture.substr(0, device.architecture.find(':'));
    if (architecture == nullptr || wanted != architecture || host == nullptr) {
        dlclose(library);
        return host ? kNoBinaryForGpu : kInvalidImage;
    }
    *host = &kHostInterface;
    *out = new Module{library, static_cast<unsigned>(device.wave_size), current_device(), {}};
    modules.insert(*out);
    return kSuccess;
}

ENTRY Error hipModuleUnload(Module* module) {
    ENTER(hipModuleUnload);
    if (!modules.erase(module)) return kInvalidHandle;
    const Error finished = finish_all();
    for (const auto& [name, function] : module->functions) functions.erase(function.get());
    dlclose(module->library);
    delete module;
    return finished;
}

ENTRY Error hipModuleGetFunction(const Function** out, Module* module, const char* name) {
    ENTER(hipModuleGetFunction);
    *out = nullptr;
    if (!modules.count(module)) return kInvalidHandle;
    std::unique_ptr<Function>& function = module->functions[name];
    if (!function) {
        const auto find = [&](const std::string& symbol) {
            return dlsym(module->library, symbol.c_str());
        };
        void* kernel = find(name);
        const void* threads = find(std::string(name) + "_threads");
        const void* bytes = find(std::string(name) + "_bytes");
        if (!kernel || !threads || !bytes) return kNotFound;
        function.reset(new Function{name, reinterpret_cast<void (*)(const void*)>(kernel),
                                    *static_cast<const unsigned*>(threads),
                                    *static_cast<const unsigned*>(bytes), module->wave_size,
                                    module->device});
        functions.insert(function.get());
    }
    *out = function.get();
    return kSuccess;
}

ENTRY Error hipModuleLaunchKernel(const Function* function, unsigned grid_x, unsigned grid_y,
                                  unsigned grid_z, unsigned block_x, unsigned block_y,
                                  unsigned block_z, unsigned, Stream* stream, void**,
                                  void** extra) {
    ENTER(hipModuleLaunchKernel);
    if (!functions.count(function)) return kInvalidHandle;
    if (!grid_x || !grid_y || !grid_z || !block_x || block_y != 1 || block_z != 1 ||
        block_x > kMaxThreads) {
        return kInvalidConfiguration;
    }
    if (block_x != function->threads) {
        explain("kernel " + function->name + " is for blocks of " +
                std::to_string(function->threads) + " threads, got " + std::to_string(block_x));
        return kInvalidConfiguration;
    }
    const void* buffer;
    size_t bytes;
    if (!read_extra(extra, buffer, bytes)) return kInvalidValue;
    constexpr size_t kPadding = 8;  // rocmforge/gpu/launch.py pads every struct so
    if (bytes != (function->arguments + kPadding - 1) / kPadding * kPadding) {
        explain("kernel " + function->name + " takes " + std::to_string(function->arguments) +
                " bytes of arguments, got " + std::to_string(bytes));
        return kInvalidValue;
    }
    const auto* start = static_cast<const char*>(buffer);
    if (Clocks* clocks = planted_clocks()) clocks->host += clocks->launch;
    return enqueue(stream, [function, grid = Dim{grid_x, grid_y, grid_z},
                            arguments = std::vector<char>(start, start + bytes)] {
        return run(*function, grid, arguments);
    });
}
