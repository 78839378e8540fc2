# Fails if libmlx and its headers have different versions. Such a pair links, but the program would
# corrupt memory.
set(probe ${CMAKE_CURRENT_BINARY_DIR}/mlx_version.cpp)
file(WRITE ${probe} [[
#include <cstdio>
namespace mlx::core { const char* version(); }
int main() { std::puts(mlx::core::version()); }
]])
unset(MLX_LIBRARY_FILE CACHE) # an earlier build may have found another
find_library(MLX_LIBRARY_FILE mlx PATHS ${MLX_LIBRARY_DIRS} NO_DEFAULT_PATH REQUIRED)
if(CUDA)
  # libmlx for CUDA depends on NVIDIA's driver libraries, which this machine may lack.
  set(probe_options -Wl,--allow-shlib-undefined)
endif()
try_run(probe_ran probe_compiled SOURCES ${probe}
  LINK_LIBRARIES ${MLX_LIBRARY_FILE}
  LINK_OPTIONS ${probe_options}
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
if(CUDA)
  # The functions of MLX's CUDA backend that cpp/runtime/cuda_*.cpp call, by their mangled names.
  set(exports ${CMAKE_CURRENT_BINARY_DIR}/mlx_exports.cpp)
  file(WRITE ${exports} [[
void encoder() __asm__("_ZN3mlx4core2cu19get_command_encoderENS0_6StreamE");
void input() __asm__("_ZN3mlx4core2cu14CommandEncoder15set_input_arrayERKNS0_5arrayE");
void output() __asm__("_ZN3mlx4core2cu14CommandEncoder16set_output_arrayERKNS0_5arrayE");
void node() __asm__("_ZN3mlx4core2cu14CommandEncoder19add_kernel_node_rawEP9CUfunc_st4dim3S5_S5_jPPv");
void full() __asm__("_ZN3mlx4core2cu14CommandEncoder12needs_commitEv");
void done() __asm__("_ZN3mlx4core2cu14CommandEncoder21add_completed_handlerESt8functionIFvvEE");
void commit() __asm__("_ZN3mlx4core2cu14CommandEncoder6commitEv");
void current() __asm__("_ZN3mlx4core2cu6Device12make_currentEv");
int main() { encoder(), input(), output(), node(), full(), done(), commit(), current(); }
]])
  try_compile(exports_link SOURCES ${exports}
    LINK_LIBRARIES ${MLX_LIBRARY_FILE}
    LINK_OPTIONS ${probe_options}
    OUTPUT_VARIABLE exports_output)
  if(NOT exports_link)
    message(FATAL_ERROR
      "MLX ${mlx_library_version} does not export what the feature cuda needs of its CUDA backend. The wheels "
      "mlx-cuda-12 and mlx-cuda-13 export it from version 0.32.4 on:\n${exports_output}")
  endif()
endif()
