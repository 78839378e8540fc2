//! Kernel launches and Metal libraries: the kernels that the simulator runs, and the errors of
//! wrong ones.

use std::sync::Arc;

use mlx_primitives::custom::{
    Call, CustomPrimitive, Launch, MetalLibrary, Spec, View, ViewMut, apply, apply_one,
};
use mlx_primitives::{Array, Error, Result, async_eval};

use super::metallib::metallib;
use super::ops::{SoftCap, kernels, soft_cap};
use crate::support::input::random32;
use crate::support::{Checked, message};

type Plan = dyn Fn(&Call) -> Vec<Launch> + Send + Sync;

/// A primitive whose outputs have x's shape. The function `plan` returns its launches.
struct Launches {
    plan: Arc<Plan>,
    outputs: usize,
}

impl CustomPrimitive for Launches {
    fn name(&self) -> &str {
        "launches"
    }

    fn outputs(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        Ok(vec![inputs[0].clone(); self.outputs])
    }

    fn eval_cpu(&self, _: &[View<'_>], _: &mut [ViewMut<'_>]) -> Result<()> {
        Err(Error::from("[launches] expected a GPU"))
    }

    fn launch(&self, call: &Call) -> Result<Vec<Launch>> {
        Ok((self.plan)(call))
    }
}

fn launches(
    x: &Array,
    plan: impl Fn(&Call) -> Vec<Launch> + Send + Sync + 'static,
) -> Result<Array> {
    apply_one(Launches { plan: Arc::new(plan), outputs: 1 }, &[x])
}

fn library(source: &str) -> Result<MetalLibrary> {
    MetalLibrary::from_source(format!("#include <metal_stdlib>\nusing namespace metal;\n{source}"))
}

/// A separate library whose kernels have function constants. The simulator requires that a program
/// sets all constants of a library, so other kernels cannot be in it.
fn with_constants() -> Result<MetalLibrary> {
    MetalLibrary::from_source(include_str!("shifted.metal"))
}

/// The source of a kernel that computes y[i] = `value`. The kernel has the same name in each
/// library.
fn constant_kernel(value: &str) -> String {
    format!(
        "[[kernel]] void same_name(device float* y [[buffer(0)]],\n\
         uint i [[thread_position_in_grid]]) {{ y[i] = {value}; }}"
    )
}

#[cfg(target_os = "linux")]
mod simulated {
    use mlx_primitives::device::{Device, with_device};
    use mlx_primitives::simulator::{Schedule, with_metal};

    use super::*;

    fn each_schedule(test: impl Fn() -> Checked) -> Checked {
        Schedule::ALL.into_iter().try_for_each(|schedule| with_metal(schedule, &test)?)
    }

    #[test(simulated = never)]
    fn function_constants_choose_the_pipeline() -> Checked {
        each_schedule(|| {
            let x = Array::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [4])?;
            for (negate, offset) in [(false, 0.5f32), (true, 0.5), (true, 2.0), (false, 0.5)] {
                let plan = move |_: &Call| {
                    let library = with_constants().expect("a library");
                    let launch = Launch::new(&library, "shifted")
                        .constant(1, offset)
                        .constant(0, negate)
                        .threadgroup_memory(0, 16)
                        .input(0, 0)
                        .output(1, 0)
                        .threads([4, 1, 1], [4, 1, 1]);
                    vec![launch]
                };
                let sign = if negate { -1.0 } else { 1.0 };
                let want = [4.0, 3.0, 2.0, 1.0].map(|x: f32| sign * x + offset);
                assert_eq!(launches(&x, plan)?.to_vec::<f32>()?, want);
            }
            Ok(())
        })
    }

    #[test(simulated = never)]
    fn launches_follow_each_other() -> Checked {
        let library = library(
            "[[kernel]] void twice(const device float* x [[buffer(0)]],\n\
             device float* y [[buffer(1)]], uint i [[thread_position_in_grid]]) { y[i] = 2.0f * x[i]; }\n\
             [[kernel]] void sum(const device float* a [[buffer(0)]], const device float* b [[buffer(1)]],\n\
             device float* y [[buffer(2)]], uint i [[thread_position_in_grid]]) { y[i] = a[99 - i] + b[i]; }",
        )?;
        each_schedule(|| {
            let x = random32(&[100], 1)?;
            let library = library.clone();
            let plan = move |_: &Call| {
                let launch =
                    |kernel| Launch::new(&library, kernel).threads([100, 1, 1], [32, 1, 1]);
                let second = launch("sum").written(0, 0).input(1, 0).output(2, 1);
                vec![launch("twice").input(0, 0).output(1, 0), second]
            };
            let y = apply(Launches { plan: Arc::new(plan), outputs: 2 }, &[&x])?;
            let x = x.to_vec::<f32>()?;
            let want: Vec<f32> = (0..100).map(|i| 2.0 * x[99 - i] + x[i]).collect();
            assert_eq!(y[1].to_vec::<f32>()?, want);
            Ok(())
        })
    }

    #[test(simulated = never)]
    fn kernels_of_one_name_stay_apart() -> Checked {
        each_schedule(|| {
            let x = random32(&[8], 2)?;
            let mut arrays = Vec::new();
            for round in 0..2 {
                for value in ["1.0f", "2.0f", "3.0f"] {
                    // The loop drops its handle of the library before any array is evaluated.
                    let library = library(&constant_kernel(value))?;
                    let plan = move |_: &Call| {
                        vec![
                            Launch::new(&library, "same_name")
                                .output(0, 0)
                                .threads([8, 1, 1], [8, 1, 1]),
                        ]
                    };
                    arrays.push((launches(&x, plan)?, value, round));
                }
            }
            async_eval(arrays.iter().map(|(array, ..)| array))?;
            for (array, value, round) in arrays {
                let want: f32 = value.trim_end_matches('f').parse()?;
                assert_eq!(array.to_vec::<f32>()?, [want; 8], "round {round}");
            }
            Ok(())
        })
    }

    #[test(simulated = never)]
    fn a_library_outlives_its_handle() -> Checked {
        each_schedule(|| {
            let x = random32(&[300], 3)?;
            let want =
                mlx_primitives::simulator::without_metal(|| soft_cap(&x, 2.0)?.to_vec::<f32>())?;
            let library = kernels()?;
            let lazy = apply_one(SoftCap { cap: 2.0, library: library.clone() }, &[&x])?;
            let running = apply_one(SoftCap { cap: 2.0, library: library.clone() }, &[&x])?;
            async_eval([&running])?;
            drop(library);
            for array in [lazy, running] {
                let far =
                    array.to_vec::<f32>()?.iter().zip(&want).any(|(a, b)| (a - b).abs() > 1e-6);
                assert!(!far);
            }
            Ok(())
        })
    }

    /// MLX passes source to Metal as ASCII. This crate replaces other characters by spaces. They
    /// occur only in comments.
    #[test(simulated = never)]
    fn sources_may_have_any_comment() -> Checked {
        each_schedule(|| {
            let x = random32(&[8], 4)?;
            let library = library(&format!("// x² + é\n{}", constant_kernel("4.0f")))?;
            let plan = move |_: &Call| {
                vec![Launch::new(&library, "same_name").output(0, 0).threads([8, 1, 1], [8, 1, 1])]
            };
            assert_eq!(launches(&x, plan)?.to_vec::<f32>()?, [4.0; 8]);
            Ok(())
        })
    }

    fn said_of(
        plan: impl Fn(&MetalLibrary) -> Vec<Launch> + Send + Sync + 'static,
    ) -> Result<String> {
        let library = with_constants()?;
        // The simulator must find these faults. A GPU would report them in other ways.
        with_device(Device::Cpu, || {
            let y = launches(&random32(&[64], 5)?, move |_| plan(&library))?;
            with_metal(Schedule::Forward, || {
                let said = message(y.eval());
                assert!(y.to_vec::<f32>().is_err(), "{said}: and then a result");
                assert!(!said.is_empty());
                Ok(said)
            })?
        })
    }

    fn shifted(library: &MetalLibrary) -> Launch {
        Launch::new(library, "shifted").constant(0, true).constant(1, 0.0f32)
    }

    #[test(simulated = never)]
    fn faults_of_a_launch() -> Checked {
        type Case = (&'static str, fn(&MetalLibrary) -> Vec<Launch>);
        let cases: [Case; 20] = [
            ("at least one dispatch", |_| Vec::new()),
            ("write every output", |l| vec![shifted(l).input(0, 0)]),
            ("no kernel 'absent'", |l| {
                vec![Launch::new(l, "absent").output(0, 0).constant(0, true).constant(1, 0.0f32)]
            }),
            ("letters, digits and _", |l| vec![Launch::new(l, "é;").output(0, 0)]),
            ("letters, digits and _", |l| vec![Launch::new(l, "").output(0, 0)]),
            ("index 31", |l| vec![shifted(l).output(31, 0)]),
            ("index 1 wrong or twice", |l| vec![shifted(l).input(1, 0).output(1, 0)]),
            ("one of 1 inputs, got number 1 at index 0", |l| {
                vec![shifted(l).input(0, 1).output(1, 0)]
            }),
            ("one of 1 outputs, got number 1 at index 2", |l| {
                vec![shifted(l).input(0, 0).output(1, 0).output(2, 1)]
            }),
            ("parameter bytes", |l| vec![shifted(l).output(1, 0).parameters(0, &[[0u32; 32]; 64])]),
            ("parameter bytes", |l| vec![shifted(l).output(1, 0).parameters(0, &[0u32; 0])]),
            ("grid", |l| vec![shifted(l).output(1, 0).groups([0, 1, 1], [32, 1, 1])]),
            ("grid", |l| vec![shifted(l).output(1, 0).groups([1, 1, 1], [1025, 1, 1])]),
            ("grid", |l| vec![shifted(l).output(1, 0).groups([1, 1, 1], [u32::MAX, u32::MAX, 3])]),
            ("threadgroup memory", |l| vec![shifted(l).output(1, 0).threadgroup_memory(0, 15)]),
            ("threadgroup memory", |l| vec![shifted(l).output(1, 0).threadgroup_memory(0, 32784)]),
            ("one threadgroup memory an index, got index 31", |l| {
                vec![shifted(l).output(1, 0).threadgroup_memory(31, 16)]
            }),
            ("one function constant an index, got index 0", |l| {
                vec![shifted(l).output(1, 0).constant(0, false)]
            }),
            ("that an earlier launch wrote at index 0, got number 0", |l| {
                vec![shifted(l).written(0, 0).output(1, 0)]
            }),
            ("write every output", |l| vec![shifted(l).input(0, 0).input(1, 0)]),
        ];
        for (mentions, plan) in cases {
            let said = said_of(plan)?;
            assert!(said.contains(mentions), "{said} lacks {mentions}");
        }
        Ok(())
    }

    #[test(simulated = never)]
    fn faults_that_the_simulator_finds() -> Checked {
        let bound =
            |l: &MetalLibrary| shifted(l).threadgroup_memory(0, 256).input(0, 0).output(1, 0);
        type Faulty = Box<dyn Fn(&MetalLibrary) -> Vec<Launch> + Send + Sync>;
        let cases: [(&str, Faulty); 6] = [
            // These launches bind a buffer to a wrong index, leave it unbound, or swap it with
            // another one.
            (
                "Argument",
                Box::new(|l| {
                    vec![
                        shifted(l)
                            .threadgroup_memory(0, 256)
                            .input(0, 0)
                            .output(2, 0)
                            .threads([64, 1, 1], [64, 1, 1]),
                    ]
                }),
            ),
            (
                "Argument",
                Box::new(|l| {
                    vec![
                        shifted(l)
                            .threadgroup_memory(0, 256)
                            .output(1, 0)
                            .threads([64, 1, 1], [64, 1, 1]),
                    ]
                }),
            ),
            (
                "ReadOnlyWrite",
                Box::new(|l| {
                    vec![
                        shifted(l)
                            .threadgroup_memory(0, 256)
                            .output(0, 0)
                            .input(1, 0)
                            .threads([64, 1, 1], [64, 1, 1]),
                    ]
                }),
            ),
            ("OutOfBounds", Box::new(move |l| vec![bound(l).threads([128, 1, 1], [64, 1, 1])])),
            ("UnwrittenOutput", Box::new(move |l| vec![bound(l).threads([32, 1, 1], [32, 1, 1])])),
            ("function constant", Box::new(|l| vec![Launch::new(l, "shifted").output(1, 0)])),
        ];
        for (mentions, plan) in cases {
            let said = said_of(move |library| plan(library))?;
            assert!(said.contains(mentions), "{said} lacks {mentions}");
        }
        Ok(())
    }

    /// A kernel that does not compile makes many checks fail. The harness compiles it once, and
    /// reports the error once.
    #[test(simulated = never)]
    fn a_broken_kernel_is_one_failure_of_the_harness() -> Checked {
        use mlx_primitives_check::{Backend, Check, Conformance};

        let broken = library("[[kernel]] void broken() { this_is_no_function(); }")?;
        let plan = move |_: &Call| vec![Launch::new(&broken, "broken").output(0, 0)];
        let plan: Arc<Plan> = Arc::new(plan);
        let op = move |x: &[Array]| {
            Ok(vec![apply_one(Launches { plan: plan.clone(), outputs: 1 }, &[&x[0]])?])
        };
        let mut run = Conformance::new("broken", op, |x| x.to_vec())
            .shapes(&[&[3, 5]])
            .shapes(&[&[7]])
            .backends(&Schedule::ALL.map(Backend::SimulatedMetal));
        for check in [Check::Vjp, Check::Jvp, Check::Vmap] {
            run = run.without(check, "the primitive has none");
        }
        let start = std::time::Instant::now();
        let report = run.run();
        let took = start.elapsed();
        let failed = report.failures().count();
        assert!(failed > 100 && failed == report.outcomes().len(), "{failed}");
        for said in [message(report.check()), report.to_string()] {
            assert_eq!(said.matches("does not compile").count(), 1, "{said}");
            assert!(said.contains("this_is_no_function"), "{said}");
            let more = format!("(and the same in {} more comparisons)", failed - 1);
            assert!(said.contains(&more), "{more}: {said}");
        }
        // A compilation takes a large part of a second.
        assert!(took.as_secs_f64() < 0.05 * failed as f64, "{took:?} for {failed} comparisons");
        Ok(())
    }

    #[test(simulated = never)]
    fn sources_that_do_not_compile() -> Checked {
        let broken = library("[[kernel]] void broken() { this is no C++ }")?;
        let said = said_of(move |_| vec![Launch::new(&broken, "broken").output(0, 0)])?;
        assert!(said.contains("does not compile"), "{said}");
        assert!(MetalLibrary::from_source("a\0b").is_err());
        let nothing = MetalLibrary::from_bytes(metallib((3, 1)))?;
        let said = said_of(move |_| vec![Launch::new(&nothing, "kernel_of_it").output(0, 0)])?;
        assert!(said.contains("which only a Mac runs"), "{said}");
        let with_source = MetalLibrary::from_bytes(metallib((3, 1)))?
            .with_source(format!("#include <metal_stdlib>\n{}", constant_kernel("5.0f")))?;
        let plan = move |_: &Call| {
            vec![Launch::new(&with_source, "same_name").output(0, 0).threads([8, 1, 1], [8, 1, 1])]
        };
        let y = launches(&random32(&[8], 6)?, plan)?;
        assert_eq!(with_metal(Schedule::Forward, || y.to_vec::<f32>())??, [5.0; 8]);
        Ok(())
    }
}

/// On the CPU, evaluation never calls `launch`, and needs no Metal.
#[test]
fn a_launch_is_not_asked_for_on_the_cpu() -> Checked {
    let x = random32(&[5], 7)?;
    let said = mlx_primitives::simulator::without_metal(|| {
        mlx_primitives::device::with_device(mlx_primitives::device::Device::Cpu, || {
            message(launches(&x, |_| Vec::new()).and_then(|y| y.eval()))
        })
    });
    assert!(said.contains("[launches] expected a GPU"), "{said}");
    Ok(())
}
