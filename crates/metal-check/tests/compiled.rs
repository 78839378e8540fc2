//! Tests kernels in the forms that Apple's compiler produces: AIR (Apple's LLVM IR) as text, AIR as
//! bitcode, and a `.metallib`.
#![cfg(target_os = "linux")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Ran, run};

/// A module with two kernels: `twice` doubles each number, and `shifted` moves each number to the
/// index before it.
const MODULE: &str = r#"
define void @twice(ptr addrspace(1) noundef readonly %x, ptr addrspace(1) noundef %y, i32 noundef %i) {
  %n = zext i32 %i to i64
  %from = getelementptr inbounds float, ptr addrspace(1) %x, i64 %n
  %value = load float, ptr addrspace(1) %from, align 4
  %twice = fmul float %value, 2.000000e+00
  %to = getelementptr inbounds float, ptr addrspace(1) %y, i64 %n
  store float %twice, ptr addrspace(1) %to, align 4
  ret void
}

define void @shifted(ptr addrspace(1) noundef readonly %x, ptr addrspace(1) noundef %y, i32 noundef %i) {
  %n = zext i32 %i to i64
  %next = add i64 %n, 1
  %from = getelementptr inbounds float, ptr addrspace(1) %x, i64 %next
  %value = load float, ptr addrspace(1) %from, align 4
  %to = getelementptr inbounds float, ptr addrspace(1) %y, i64 %n
  store float %value, ptr addrspace(1) %to, align 4
  ret void
}

!air.kernel = !{!0, !1}
!0 = !{ptr @twice, !2, !3}
!1 = !{ptr @shifted, !2, !3}
!2 = !{}
!3 = !{!4, !5, !6}
!4 = !{i32 0, !"air.buffer", !"air.location_index", i32 0, i32 1, !"air.read", !"air.address_space", i32 1, !"air.arg_type_size", i32 4, !"air.arg_type_align_size", i32 4, !"air.arg_type_name", !"float", !"air.arg_name", !"x"}
!5 = !{i32 1, !"air.buffer", !"air.location_index", i32 1, i32 1, !"air.read_write", !"air.address_space", i32 1, !"air.arg_type_size", i32 4, !"air.arg_type_align_size", i32 4, !"air.arg_type_name", !"float", !"air.arg_name", !"y"}
!6 = !{i32 2, !"air.thread_position_in_grid", !"air.arg_type_name", !"uint", !"air.arg_name", !"i"}
"#;

/// Compiles the module `text` to bitcode.
fn bitcode(folder: &Path, text: &str) -> Vec<u8> {
    let (from, to) = (folder.join("module.ll"), folder.join("module.bc"));
    fs::write(&from, text).unwrap();
    let compiler = metal_sim::Compiler::find().unwrap();
    let zig = compiler.program().to_string_lossy().contains("zig");
    let mut program = Command::new(compiler.program());
    program.args(zig.then_some("c++"));
    program.args(["-w", "-O0", "-emit-llvm", "-c"]).arg(&from).arg("-o").arg(&to);
    assert!(program.status().unwrap().success());
    fs::read(to).unwrap()
}

/// Makes a Metal library from the names of functions and the bitcode of each function's module.
fn metallib(functions: &[(&str, &[u8])]) -> Vec<u8> {
    let (mut list, mut code) = ((functions.len() as u32).to_le_bytes().to_vec(), Vec::new());
    for (name, bitcode) in functions {
        let tag = |name: &[u8; 4], data: &[u8]| {
            [&name[..], &(data.len() as u16).to_le_bytes(), data].concat()
        };
        let size = (bitcode.len() as u64).to_le_bytes();
        let offsets = [[0; 8], [0; 8], (code.len() as u64).to_le_bytes()].concat();
        let tags = [
            tag(b"NAME", format!("{name}\0").as_bytes()),
            tag(b"MDSZ", &size),
            tag(b"OFFT", &offsets),
            b"ENDT".to_vec(),
        ];
        let tags = tags.concat();
        list.extend((tags.len() as u32 + 4).to_le_bytes());
        list.extend(tags);
        code.extend_from_slice(bitcode);
    }
    let list_size = list.len() as u64;
    let mut file = b"MTLB".to_vec();
    file.resize(16, 0);
    let (at, code_at) = (88, 88 + list_size);
    let words =
        [code_at + code.len() as u64, at, list_size, 0, 0, 0, 0, code_at, code.len() as u64];
    words.iter().for_each(|word| file.extend(word.to_le_bytes()));
    [file, list, code].concat()
}

/// Writes a file with this content, and runs the kernel `entry` of the file.
fn check(name: &str, content: &[u8], entry: &str) -> Ran {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join(name), content).unwrap();
    let size = ["--grid", "8", "--threadgroup", "4", "--buffer", "0=f32:8:iota", "--buffer"];
    let kernel = [name, "--entry", entry, "1=f32:8", "--expect", "1=f32:8:0,2,4,6,8,10,12,14"];
    run(folder.path(), &[&kernel[..3], &size, &kernel[3..]].concat())
}

fn files() -> Vec<(PathBuf, Vec<u8>)> {
    let folder = tempfile::tempdir().unwrap();
    let code = bitcode(folder.path(), MODULE);
    // In a metallib, each function is a separate module.
    let one = |kernel: &str| {
        let node = if kernel == "twice" { "!0" } else { "!1" };
        let text = MODULE.replace("!air.kernel = !{!0, !1}", &format!("!air.kernel = !{{{node}}}"));
        bitcode(folder.path(), &text)
    };
    let library = metallib(&[("twice", &one("twice")), ("shifted", &one("shifted"))]);
    let text = MODULE.as_bytes().to_vec();
    vec![("k.ll".into(), text), ("k.air".into(), code), ("k.metallib".into(), library)]
}

#[test]
fn kernels_run_from_every_kind_of_file() {
    for (name, content) in files() {
        let name = name.to_str().unwrap();
        let ran = check(name, &content, "twice");
        assert_eq!(ran.status, Some(0), "{name}: {}{}", ran.out, ran.err);
        let ran = check(name, &content, "shifted");
        assert_eq!(ran.status, Some(1), "{name}: {}{}", ran.out, ran.err);
        assert!(ran.out.contains("OutOfBounds: load of 4 bytes at offset 32"), "{}", ran.out);
        let ran = check(name, &content, "gone");
        assert_eq!(ran.status, Some(1), "{name}: {}{}", ran.out, ran.err);
        assert!(ran.err.contains("'gone'"), "{}", ran.err);
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(name), &content).unwrap();
        let listed = run(folder.path(), &[name]);
        for line in ["twice\n", "   1  y                     buffer, written, elements of 4 bytes"]
        {
            assert!(listed.out.contains(line), "{name}: {}{}", listed.out, listed.err);
        }
        let ran = run(folder.path(), &[name, "-D", "X"]);
        assert!(ran.err.contains("-I and -D are for source, and k."), "{}", ran.err);
    }
}

#[test]
fn files_that_cannot_be_read_are_refused() {
    let texture = MODULE.replace("!\"air.buffer\"", "!\"air.texture\"");
    let vertex = MODULE.replace("air.kernel", "air.vertex");
    let typed = MODULE.replace("ptr @twice", "void (float*)* @twice");
    let (_, library) = files().pop().unwrap();
    let mut long = library.clone();
    long[32..40].copy_from_slice(&u64::MAX.to_le_bytes()); // the size of the list
    for (name, content, words) in [
        ("k.ll", texture.as_bytes(), "a parameter of the unknown kind 'texture'"),
        ("k.ll", vertex.as_bytes(), "it has no kernel"),
        ("k.ll", typed.as_bytes(), "LLVM 15 or later has to write it"),
        ("k.bc", b"BC\xC0\xDEnothing".as_slice(), "the bitcode could not be read"),
        ("k.metallib", &library[..100], "k.metallib"),
        ("k.metallib", &long, "is not a Metal library"),
    ] {
        let ran = check(name, content, "twice");
        assert_eq!(ran.status, Some(1), "{words}: {}{}", ran.out, ran.err);
        assert!(ran.err.contains(words), "{words}: {}", ran.err);
    }
}
