# Fails if libmlx and its headers have different versions: such a pair links and then corrupts memory.
set(probe ${CMAKE_CURRENT_BINARY_DIR}/mlx_version.cpp)
file(WRITE ${probe} [[
#include <cstdio>
namespace mlx::core { const char* version(); }
int main() { std::puts(mlx::core::version()); }
]])
find_library(MLX_LIBRARY_FILE mlx PATHS ${MLX_LIBRARY_DIRS} NO_DEFAULT_PATH REQUIRED)
try_run(probe_ran probe_compiled SOURCES ${probe}
  LINK_LIBRARIES ${MLX_LIBRARY_FILE}
  COMPILE_OUTPUT_VARIABLE compile_output
  RUN_OUTPUT_VARIABLE mlx_library_version)
if(NOT probe_compiled)
  message(FATAL_ERROR "A program that links ${MLX_LIBRARY_FILE} does not build:\n${compile_output}")
endif()
if(NOT probe_ran EQUAL 0)
  message(FATAL_ERROR "A program that links ${MLX_LIBRARY_FILE} does not start: ${mlx_library_version}")
endif()
string(STRIP "${mlx_library_version}" mlx_library_version)
string(REGEX REPLACE "[.]dev.*" "" mlx_library_release "${mlx_library_version}")
if(NOT mlx_library_release STREQUAL MLX_HEADER_VERSION)
  message(FATAL_ERROR
    "MLX's headers are version ${MLX_HEADER_VERSION} but ${MLX_LIBRARY_FILE} is version "
    "${mlx_library_version}: point MLX_DIR at one whole install, or run scripts/build_metal.sh")
endif()
