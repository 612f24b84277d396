# Read by CMake as a toolchain file when faiss-sys compiles Faiss. Its 118 files each read the same standard headers;
# precompiled, they take a fifth less time. Only standard headers: Faiss's own may mean something else in each file.
get_property(asked GLOBAL PROPERTY searchmill_precompiled)
if(PROJECT_NAME STREQUAL "faiss" AND NOT asked)
  set_property(GLOBAL PROPERTY searchmill_precompiled ON)
  cmake_language(DEFER CALL target_precompile_headers faiss PRIVATE
    <algorithm> <atomic> <cassert> <cinttypes> <cmath> <cstdio> <cstring> <functional> <iostream> <limits> <map> <memory>
    <mutex> <queue> <random> <set> <sstream> <string> <thread> <unordered_map> <unordered_set> <vector> <omp.h>
    <immintrin.h>)
endif()
