//! The crate's kernels with one mistake each: every one is caught, and the original is not.

mod common;

use std::path::Path;

use common::{cache, compiler, metal};
use metal_sim::{Buffer, Constants, Dispatch, FaultKind, Library, Schedule, Source};

/// All files in one folder, `file` with `from` replaced.
fn mutant(file: &str, from: &str, to: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let sources = metal("common").parent().map(Path::to_path_buf).unwrap();
    for entry in std::fs::read_dir(sources).unwrap().flatten() {
        let mut text = std::fs::read_to_string(entry.path()).unwrap();
        if entry.file_name() == file {
            assert!(text.contains(from), "{file} has no {from}");
            text = text.replacen(from, to, 1);
        }
        std::fs::write(folder.path().join(entry.file_name()), text).unwrap();
    }
    folder
}

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Kinds of fault that the row kernels of `op` show over rows of `axis`.
fn run_rows(folder: &Path, op: &str, form: &str, axis: usize, threads: u32) -> Vec<FaultKind> {
    let source = Source::new(folder.join(format!("{op}.metal")));
    let library = Library::compile(&source, compiler(), cache()).unwrap_or_else(|e| panic!("{e}"));
    let name = format!("mlxp_{op}_{form}_float32");
    let kernel = library.kernel(&name, &Constants::new()).unwrap();
    let rows = 3u32;
    let x = vec![0.5f32; rows as usize * axis];
    let mut found = Vec::new();
    for schedule in [Schedule::Forward, Schedule::Reversed, Schedule::Shuffled(5)] {
        let mut out = vec![0.0f32; x.len()];
        let dispatch = Dispatch::new(&kernel).buffer(0, Buffer::input(&x));
        let params = bytes(&[rows, axis as u32, 0]);
        let mut dispatch = match op {
            "rms_norm" => dispatch
                .buffer(1, Buffer::input(&x))
                .buffer(2, Buffer::output(&mut out))
                .bytes(3, &params),
            _ => dispatch.buffer(1, Buffer::output(&mut out)).bytes(2, &params[..8]),
        };
        dispatch = match form {
            "simd" => dispatch.grid_groups([1, 1, 1], [4 * 32, 1, 1]),
            _ => {
                let slots = if op == "softmax" { 2 } else { 1 };
                let scratch = (threads as usize / 32 * 4 * slots).next_multiple_of(16);
                dispatch.threadgroup(0, scratch).grid_groups([rows, 1, 1], [threads, 1, 1])
            }
        };
        let report = dispatch.schedule(schedule).run().unwrap();
        found.extend(report.faults.iter().map(|fault| fault.kind));
    }
    found
}

const BARRIER: &str = "threadgroup_barrier(mem_flags::mem_threadgroup);";

#[test]
fn mistakes_in_rows() {
    let cases = [
        ("rms_norm", "row", 1000, 256, "common.h", BARRIER, ""),
        ("rms_norm", "row", 1000, 256, "common.h", "mem_threadgroup);", "mem_none);"),
        ("rms_norm", "row", 1000, 256, "common.h", "threadgroup_barrier(", "simdgroup_barrier("),
        (
            "rms_norm",
            "row",
            1000,
            256,
            "common.h",
            BARRIER,
            "if (at.simd > 0) { threadgroup_barrier(mem_flags::mem_threadgroup); }",
        ),
        (
            "rms_norm",
            "row",
            1000,
            256,
            "common.h",
            "at.lane < at.simds ? slots[at.lane] : 0.0f",
            "slots[at.lane]",
        ),
        ("rms_norm", "simd", 31, 0, "common.h", "at + i < axis ? row[at + i] : pad", "row[at + i]"),
        ("rms_norm", "simd", 31, 0, "common.h", "if (at + i < axis) {", "if (true) {"),
        ("rms_norm", "simd", 31, 0, "rms_norm.metal", "if (row >= params.rows) {", "if (false) {"),
        (
            "rms_norm",
            "row",
            1000,
            256,
            "rms_norm.metal",
            "out += size_t(group) * params.axis;\n\n  packed4<T> values[QUADS]",
            "out += size_t(group) * (params.axis - 1);\n\n  packed4<T> values[QUADS]",
        ),
        (
            "rms_norm",
            "row",
            1000,
            256,
            "rms_norm.metal",
            "store4(out, at, params.axis, scaled<T, WEIGHTED>(values[q]",
            "store4(out, at / 2, params.axis, scaled<T, WEIGHTED>(values[q]",
        ),
        (
            "rms_norm",
            "looped",
            5000,
            1024,
            "rms_norm.metal",
            "at < params.axis; at += threads * READS) {\n    packed4",
            "at < params.axis / 2; at += threads * READS) {\n    packed4",
        ),
        ("softmax", "row", 1000, 256, "softmax.metal", "scratch + simds, place", "scratch, place"),
        ("softmax", "looped", 5000, 1024, "softmax.metal", BARRIER, ""),
        (
            "softmax",
            "looped",
            5000,
            1024,
            "softmax.metal",
            "scratch[simds + simd] = sum",
            "scratch[simds] = sum",
        ),
        (
            "softmax",
            "simd",
            31,
            0,
            "softmax.metal",
            "const float sum = simd_sum(exp4",
            "const float sum = lane > 9 ? 0 : simd_sum(exp4",
        ),
    ];
    let mut missed = Vec::new();
    for (op, form, axis, threads, file, from, to) in cases {
        let folder = mutant(file, from, to);
        if run_rows(folder.path(), op, form, axis, threads).is_empty() {
            missed.push((op, form, from, to));
        }
        let original = mutant(file, from, from);
        let faults = run_rows(original.path(), op, form, axis, threads);
        assert!(faults.is_empty(), "{op} {form}: {faults:?}");
    }
    assert!(missed.is_empty(), "{missed:#?}");
}
