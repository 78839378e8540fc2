//! Compiled functions give the same results as plain functions, for every shape and layout.

use std::cell::Cell;
use std::os::unix::fs::PermissionsExt;
use std::rc::Rc;

use mlx_primitives::transforms::{Compiled, compile};
use mlx_primitives::{Array, Dtype, Result, graph, io, ops, step};

use crate::support::compare::assert_same;
use crate::support::input::{FLOATS, LAYOUTS, random, random32};
use crate::support::{Checked, OPS, each_device, in_another_process, on_cpu, refs};

const SHAPES: [&[i32]; 6] =
    [&[2, 3, 8], &[2, 3, 8], &[1, 1, 8], &[5, 2, 8], &[1, 1, 8], &[2, 3, 8]];

fn each_mode(f: impl Fn(&[Array]) -> Result<Vec<Array>> + Copy + 'static) -> Result<[Compiled; 2]> {
    Ok([compile(f, false)?, compile(f, true)?])
}

#[test]
fn values_over_shapes_and_types() -> Checked {
    each_device(|_| values())
}

#[test]
fn values_on_a_cpu() -> Checked {
    on_cpu(values)
}

fn values() -> Checked {
    for (name, op, _) in OPS {
        for f in each_mode(move |p| Ok(vec![op(&p[0].add(1.0)?)?.multiply(2.0)?]))? {
            for dtype in FLOATS {
                for shape in SHAPES {
                    let x = random(shape, dtype, 1)?;
                    let want = op(&x.add(1.0)?)?.multiply(2.0)?;
                    let what = format!("{name} {dtype} {shape:?}");
                    assert_same(&f.call(&[&x])?[0], &want, &what)?;
                }
            }
        }
    }
    Ok(())
}

/// To fuse ops on a CPU, MLX generates C++ and runs g++. This test runs in a child process whose
/// g++ fails, and which has no libraries compiled by earlier runs.
#[test]
fn nothing_is_fused_if_the_compiler_fails() -> Checked {
    let folder = tempfile::tempdir()?;
    let compiler = folder.path().join("g++");
    // MLX first runs g++ --version, and does not fuse if that fails. So this g++ succeeds for
    // --version only.
    std::fs::write(&compiler, "#!/bin/sh\n[ \"$1\" = --version ]\n")?;
    std::fs::set_permissions(&compiler, std::fs::Permissions::from_mode(0o755))?;
    in_another_process("compile::values_on_a_cpu", |child| {
        let child = child.env("TMPDIR", folder.path()).env("PATH", folder.path());
        child.env_remove("MLX_PRIMITIVES_SIMULATE_METAL")
    })?;
    let made = folder.path().join("mlx").join(mlx_primitives::device::mlx_versions().1).join("cpu");
    let files = |extension: &str| -> anyhow::Result<usize> {
        let entries = std::fs::read_dir(&made)?.collect::<std::io::Result<Vec<_>>>()?;
        Ok(entries
            .iter()
            .filter(|entry| entry.path().extension() == Some(extension.as_ref()))
            .count())
    };
    assert_eq!(files("cpp")?, 1, "MLX tried once");
    assert_eq!(files("so")?, 0, "MLX compiled after all");
    Ok(())
}

#[test]
fn all_inputs_of_rope() -> Checked {
    let rope = |p: &[Array]| {
        Ok(vec![ops::rope(
            &p[0],
            ops::Rope {
                dims: 8,
                traditional: true,
                base: None,
                offset: (&p[1]).into(),
                freqs: Some(&p[2]),
                ..ops::Rope::default()
            },
        )?])
    };
    for shapeless in [false, true] {
        let compiled = compile(rope, shapeless)?;
        for batch in [2, 3, 2] {
            for layout in LAYOUTS {
                let x = layout.make(&[batch, 4, 8], Dtype::Float32, 3)?;
                let all = Array::arange::<i32>(0.0, 10.0, 1.0)?;
                let offset = all.i(step(0..2 * batch, 2))?;
                let freqs = random32(&[4], 5)?.i(step(.., -1))?.abs()?.add(0.5)?;
                let inputs = [&x, &offset, &freqs];
                let want = rope(&[x.clone(), offset.clone(), freqs.clone()])?;
                assert_same(&compiled.call(&inputs)?[0], &want[0], "rope")?;
            }
        }
    }
    Ok(())
}

#[test]
fn it_traces_once_for_each_shape_or_for_each_choice_of_short_axes() -> Checked {
    // The first op of a thread creates its stream, and MLX caches compiled graphs by stream. So run
    // an op before the calls are counted.
    random32(&[1], 13)?.add(1.0)?.eval()?;
    for (shapeless, expected) in [(false, 3), (true, 2)] {
        let count = Rc::new(Cell::new(0));
        let counter = count.clone();
        let f = compile(
            move |p| {
                counter.set(counter.get() + 1);
                println!("{:?}", p[0].shape());
                Ok(vec![ops::softmax(&p[0])?])
            },
            shapeless,
        )?;
        for shape in SHAPES {
            f.call(&[&random32(shape, 13)?])?[0].eval()?;
        }
        assert_eq!(count.get(), expected, "shapeless {shapeless}");
    }
    Ok(())
}

/// By itself, MLX crashes if a function compiled for any shape sums along an axis of length 1.
#[test]
fn any_shape_includes_one_element_and_none() -> Checked {
    let sums = |p: &[Array]| Ok(vec![p[0].sum(0)?, p[0].mean_keepdims(&[0, 1][..])?]);
    let f = compile(sums, true)?;
    for shape in [[2, 3], [1, 3], [2, 1], [1, 1], [0, 3], [5, 4], [1, 7]] {
        let x = random32(&shape, 17)?;
        let (got, want) = (f.call(&[&x])?, sums(std::slice::from_ref(&x))?);
        for (got, want) in got.iter().zip(&want) {
            assert_same(got, want, &format!("{shape:?}"))?;
        }
    }
    Ok(())
}

#[test]
fn primitives_with_other_parameters_stay_apart() -> Checked {
    // `compile` merges equal nodes. Only the third and the last of these calls are equal. Calls
    // with equal offsets share an array, and no result of a call is an output, because `compile`
    // would otherwise never merge them.
    let f = |p: &[Array]| {
        let rope = |dims, traditional, base, scale, offset: &Array| {
            ops::rope(
                &p[0],
                ops::Rope {
                    dims,
                    traditional,
                    base: Some(base),
                    scale,
                    offset: offset.into(),
                    ..ops::Rope::default()
                },
            )
        };
        let all = [
            ops::rms_norm(&p[0], None, 1e-5)?,
            ops::rms_norm(&p[0], None, 1.0)?,
            rope(8, false, 1e4, 1.0, &p[1])?,
            rope(8, true, 1e4, 1.0, &p[1])?,
            rope(4, false, 1e4, 1.0, &p[1])?,
            rope(8, false, 1e3, 1.0, &p[1])?,
            rope(8, false, 1e4, 2.0, &p[1])?,
            rope(8, false, 1e4, 1.0, &p[2])?,
            rope(8, false, 1e4, 1.0, &p[1])?,
        ];
        all.iter().map(Array::negative).collect()
    };
    let inputs =
        [random32(&[2, 3, 8], 14)?, Array::scalar(3i32)?, Array::from_slice(&[3i32, 4], [2])?];
    let want = f(&inputs)?;
    for compiled in each_mode(f)? {
        let got = compiled.call(&refs(&inputs))?;
        assert_eq!(got.len(), want.len());
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            assert_same(got, want, &format!("output {i}"))?;
        }
    }
    Ok(())
}

/// If a compiled function captures arrays that are loaded from a file, they are read only once, for
/// all shapes of its arguments.
#[test]
fn captured_arrays_of_a_file() -> Checked {
    let folder = tempfile::tempdir()?;
    let weight = random32(&[8], 5)?;
    let safetensors = folder.path().join("w.safetensors");
    io::save_safetensors(&safetensors, [("x", &weight)], [])?;
    let gguf = folder.path().join("w.gguf");
    std::fs::write(&gguf, crate::gguf::of_floats(&weight.to_vec::<f32>()?))?;
    each_device(|_| {
        for (path, gguf) in [(&safetensors, false), (&gguf, true)] {
            for shapeless in [false, true] {
                let loaded = if gguf { io::load_gguf(path)? } else { io::load_safetensors(path)? };
                let stored = loaded.arrays["x"].clone();
                assert!(format!("{stored:?}").contains("lazy Read"), "{stored:?}");
                let function = move |p: &[Array]| {
                    let scaled = ops::rms_norm(&p[0], Some(&stored), 1e-5)?;
                    Ok(vec![scaled.add(&stored)?, stored.exp()?])
                };
                let compiled: Compiled = compile(function, shapeless)?;
                for rows in [2, 4, 1, 2] {
                    let x = random32(&[rows, 8], 6)?;
                    let want = ops::rms_norm(&x, Some(&weight), 1e-5)?.add(&weight)?;
                    let got = compiled.call(&[&x])?;
                    assert_same(&got[0], &want, &format!("{path:?} {shapeless} {rows}"))?;
                    assert_same(&got[1], &weight.exp()?, "the constant output")?;
                }
                // The captured arrays have been read by this point, so the graph holds them as
                // constants.
                let nodes = graph::nodes(&compiled.call(&[&random32(&[2, 8], 7)?])?)?;
                assert!(nodes.iter().all(|node| node.name != "Read"), "{nodes:?}");
            }
        }
        Ok(())
    })
}
