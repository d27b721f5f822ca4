// Counts the calls of every entry point by name, so that a test can tell which were exercised.
// Each of the two libraries has its own counts. It knows no entry point.
#pragma once

#include <map>
#include <mutex>
#include <string>

namespace standin {

inline std::mutex& calls_mutex() {
    static std::mutex mutex;
    return mutex;
}

inline std::map<std::string, long>& calls() {
    static std::map<std::string, long> counts;
    return counts;
}

inline void count_call(const char* name) {
    const std::lock_guard lock(calls_mutex());
    ++calls()[name];
}

inline long calls_of(const char* name) {
    const std::lock_guard lock(calls_mutex());
    const auto found = calls().find(name);
    return found == calls().end() ? 0 : found->second;
}

}  // namespace standin

#define ENTRY extern "C" __attribute__((visibility("default")))
