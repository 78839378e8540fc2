//! The shim, which consists of Metal headers, and the runtime are embedded in this crate. This
//! module writes the shim to a folder once.

use std::path::{Path, PathBuf};

use crate::error::{Result, at_path};

macro_rules! embedded {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../include/", $name)))),*]
    };
}

const HEADERS: &[(&str, &str)] = embedded![
    "metal_stdlib",
    "msl/atomic.h",
    "msl/builtins.h",
    "msl/common.h",
    "msl/geometric.h",
    "msl/gpu.h",
    "msl/gpu_registry.h",
    "msl/gpu_simdgroup.h",
    "msl/integer.h",
    "msl/limits.h",
    "msl/math.h",
    "msl/matrix.h",
    "msl/pack.h",
    "msl/quadgroup.h",
    "msl/registry.h",
    "msl/relational.h",
    "msl/runtime.h",
    "msl/simdgroup.h",
    "msl/simdgroup_matrix.h",
    "msl/traits.h",
    "msl/types.h",
    "msl/vectors.h",
    "simd/simd.h",
];

/// The names of Apple's headers, without their prefix `metal_`. Here each of these headers includes
/// `metal_stdlib`, which contains everything.
const FORWARDS: [&str; 28] = [
    "array",
    "atomic",
    "command_buffer",
    "common",
    "compute",
    "config",
    "extended_vector",
    "geometric",
    "graphics",
    "imageblocks",
    "initializer_list",
    "integer",
    "limits",
    "logging",
    "math",
    "matrix",
    "pack",
    "packing",
    "quadgroup",
    "relational",
    "simdgroup",
    "simdgroup_matrix",
    "texture",
    "type_traits",
    "types",
    "uniform",
    "visible_function_table",
    "numeric",
];

const FORWARD: &str = "#pragma once\n#include <metal_stdlib>\n";

pub(crate) const RUNTIME: &str = include_str!("../runtime/runtime.cpp");

/// The texts of all embedded files, and the names of [`FORWARDS`], for the cache's key.
pub(crate) fn contents() -> impl Iterator<Item = &'static str> {
    HEADERS.iter().map(|(_, text)| *text).chain(FORWARDS).chain([RUNTIME])
}

/// Writes the headers below `folder` unless they exist. Returns their folder.
pub(crate) fn write(folder: &Path) -> Result<PathBuf> {
    let include = folder.join(format!("include-{}", crate::cache::key(contents())));
    if include.is_dir() {
        return Ok(include);
    }
    let draft = crate::cache::draft(folder);
    for folder in ["msl", "simd"] {
        at_path(&draft, std::fs::create_dir_all(draft.join(folder)))?;
    }
    for (name, text) in HEADERS {
        at_path(&draft, std::fs::write(draft.join(name), text))?;
    }
    for name in FORWARDS {
        at_path(&draft, std::fs::write(draft.join(format!("metal_{name}")), FORWARD))?;
    }
    crate::cache::publish(&draft, &include)?;
    Ok(include)
}
