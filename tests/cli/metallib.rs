//! Tests that a program loads only a metallib that was built from the same sources.

use std::fs;
use std::process::Command;

use mlx_primitives::device;

use crate::support::build::marker;
use crate::support::compare::is_nvidia;
use crate::support::{Checked, root};

/// Other versions of the sources may have other layouts of kernel parameters. The kernels of their
/// metallib would then read wrong values.
#[test(simulated = never)]
fn a_metallib_of_other_sources_is_refused_by_name() -> Checked {
    if is_nvidia(device::default_device()?) {
        return Ok(()); // an NVIDIA GPU does not use a metallib
    }
    let directory = tempfile::tempdir()?;
    let library = directory.path().join("own.metallib");
    let marker = marker(&root().join("metal"))?;
    let stale = marker.replace(&marker[marker.len() - 8..], "00000000");
    for (content, current) in
        [(&*marker, true), (&*stale, false), ("mlxp_softmax_simd_float32", false)]
    {
        fs::write(&library, format!("MTLB\0\u{1}{content}\0ENDT"))?;
        let output = Command::new(env!("CARGO_BIN_EXE_mlx-primitives"))
            .arg("info")
            .env("MLX_PRIMITIVES_METALLIB", &library)
            .output()?;
        let said = String::from_utf8_lossy(if current { &output.stdout } else { &output.stderr });
        assert_eq!(output.status.success(), current, "{said}");
        let library = library.display().to_string();
        let parts =
            if current { ["named by"; 2] } else { ["error: ", "run scripts/build_metal.sh"] };
        assert!(said.contains(&library) && parts.iter().all(|part| said.contains(part)), "{said}");
    }
    Ok(())
}
