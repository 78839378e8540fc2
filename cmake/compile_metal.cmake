# Compiles METAL_DIR/*.metal into the metallib OUTPUT with Xcode's compiler, and reports the outcome.
#
#   cmake -DMETAL_DIR=<dir> -DOUTPUT=<file.metallib> [-DINSTEAD=<file.metallib>] [-DBROUGHT=<file.metallib>] -P compile_metal.cmake
#
# INSTEAD and BROUGHT are metallibs that may exist already. Compiles nothing if OUTPUT, INSTEAD or
# BROUGHT was compiled from these sources. Uses INSTEAD in place, and copies BROUGHT to OUTPUT.
# Leaves no OUTPUT if the compiler does not run or INSTEAD is used. Fails if a source does not
# compile.
cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/metal_hash.cmake)

foreach(required METAL_DIR OUTPUT)
  if(NOT ${required})
    message(FATAL_ERROR "compile_metal.cmake needs -D${required}=...")
  endif()
endforeach()

metal_hash(hash)
foreach(library IN ITEMS "${INSTEAD}" "${OUTPUT}")
  if(library AND EXISTS "${library}")
    # A metallib contains the names of its kernels, and one name contains the hash of the sources.
    file(STRINGS "${library}" marker REGEX "mlxp_sources_${hash}" LIMIT_COUNT 1)
    if(marker)
      if(NOT library STREQUAL OUTPUT)
        file(REMOVE "${OUTPUT}")
      endif()
      message(NOTICE "kernels are up to date in ${library}")
      return()
    endif()
  endif()
endforeach()
file(REMOVE "${OUTPUT}")
if(BROUGHT AND EXISTS "${BROUGHT}")
  file(STRINGS "${BROUGHT}" marker REGEX "mlxp_sources_${hash}" LIMIT_COUNT 1)
  if(marker)
    file(COPY_FILE "${BROUGHT}" "${OUTPUT}")
    message(NOTICE "kernels are those of ${BROUGHT}")
    return()
  endif()
  message(NOTICE "${BROUGHT} is not used: it was compiled from other sources")
endif()

set(xcrun xcrun --sdk macosx)
# Recent versions of Xcode include a placeholder `metal` that only explains how to download the
# compiler.
execute_process(COMMAND ${xcrun} metal --version RESULT_VARIABLE failure OUTPUT_QUIET ERROR_QUIET)
if(failure)
  message(NOTICE
    "Xcode's Metal compiler does not run: the kernels will be compiled when first used (to precompile them, "
    "install Xcode, from Xcode 26 on also run xcodebuild -downloadComponent MetalToolchain, then build again)")
  return()
endif()

# The language version does not set the oldest macOS. Without -mmacosx-version-min, the library
# would need the macOS version of this machine. Each object has the name of its source.
# `sources.metal` defines only the empty kernel that is named after the hash.
set(objects "${OUTPUT}.objects")
file(REMOVE_RECURSE "${objects}")
file(WRITE "${objects}/sources.metal" "[[kernel]] void mlxp_sources_${hash}() {}\n")
file(GLOB sources "${METAL_DIR}/*.metal")
list(SORT sources)
list(APPEND sources "${objects}/sources.metal")
set(compiled "")
foreach(source IN LISTS sources)
  cmake_path(GET source STEM stem)
  message(NOTICE "compiling ${stem}.metal")
  execute_process(
    COMMAND ${xcrun} metal -std=metal3.1 -mmacosx-version-min=14.0 -O2 -Wall -Wextra -fno-fast-math -I "${METAL_DIR}"
      -c "${source}" -o "${objects}/${stem}.air"
    RESULT_VARIABLE failure)
  if(failure)
    message(FATAL_ERROR "Xcode's Metal compiler refuses ${source}")
  endif()
  list(APPEND compiled "${objects}/${stem}.air")
endforeach()
# Move the metallib to OUTPUT only after it is complete.
set(linked "${objects}/mlx_primitives.metallib")
execute_process(COMMAND ${xcrun} metallib ${compiled} -o "${linked}" RESULT_VARIABLE failure)
if(failure)
  message(FATAL_ERROR "Xcode's metallib does not link the kernels")
endif()
file(RENAME "${linked}" "${OUTPUT}")
file(REMOVE_RECURSE "${objects}")
message(NOTICE "wrote ${OUTPUT}")
