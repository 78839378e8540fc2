# Sets `out` to the hash of the sources directly in METAL_DIR: first the headers, then the kernels,
# each sorted by name. A metallib contains an empty kernel whose name contains the hash, so that the
# program can refuse a metallib of other sources.
function(metal_hash out)
  file(GLOB headers RELATIVE "${METAL_DIR}" "${METAL_DIR}/*.h")
  file(GLOB kernels RELATIVE "${METAL_DIR}" "${METAL_DIR}/*.metal")
  list(SORT headers)
  list(SORT kernels)
  set(all "")
  foreach(file IN LISTS headers kernels)
    file(READ "${METAL_DIR}/${file}" text)
    string(APPEND all "${text}")
  endforeach()
  string(SHA256 hash "${all}")
  set(${out} "${hash}" PARENT_SCOPE)
endfunction()
