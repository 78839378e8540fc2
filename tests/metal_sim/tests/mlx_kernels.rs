//! Kernels of MLX, unmodified. `METAL_SIM_MLX` names a checkout; without it nothing runs.

mod common;

use metal_sim::{Buffer, Constants, Dispatch, Library, Schedule, Source};

fn library(name: &str) -> Option<Library> {
    let root = std::path::PathBuf::from(std::env::var_os("METAL_SIM_MLX")?);
    let path = root.join(format!("mlx/backend/metal/kernels/{name}.metal"));
    let source = Source::new(path).include_dir(&root);
    let library = Library::compile(&source, common::compiler(), common::cache());
    Some(library.unwrap_or_else(|error| panic!("{name}: {error}")))
}

#[test]
fn rms_norm_is_ideal() {
    let Some(library) = library("rms_norm") else { return };
    let kernel = library.kernel("rmsfloat32", &Constants::new().with(20, true)).unwrap();
    let (rows, axis) = (8usize, 4096usize);
    let x: Vec<f32> = (0..rows * axis).map(|i| (i % 13) as f32 - 6.0).collect();
    let weight = vec![1.0f32; axis];
    for schedule in [Schedule::Forward, Schedule::Reversed, Schedule::Shuffled(4)] {
        let mut out = vec![0.0f32; rows * axis];
        let report = Dispatch::new(&kernel)
            .buffer(0, Buffer::input(&x))
            .buffer(1, Buffer::input(&weight))
            .buffer(2, Buffer::output(&mut out))
            .value(3, 1e-5f32)
            .value(4, axis as u32)
            .value(5, 1u32)
            .grid_groups([rows as u32, 1, 1], [1024, 1, 1])
            .schedule(schedule)
            .run()
            .unwrap();
        assert!(report.faults.is_empty(), "{:?}", report.faults);
        let bytes = (rows * axis * 4) as u64;
        assert_eq!(report.buffers[&0].read_bytes, bytes);
        assert_eq!(report.buffers[&1].read_bytes, bytes);
        assert_eq!(report.buffers[&2].written_bytes, bytes);
        for row in 0..rows {
            let values = &x[row * axis..][..axis];
            let square: f64 = values.iter().map(|v| f64::from(v * v)).sum();
            let scale = 1.0 / (square / axis as f64 + 1e-5).sqrt();
            for (got, x) in out[row * axis..][..axis].iter().zip(values) {
                assert!((f64::from(*got) - f64::from(*x) * scale).abs() < 1e-5);
            }
        }
    }
}

#[test]
fn others_compile() {
    for name in ["softmax", "layer_norm", "rope", "logsumexp", "arg_reduce"] {
        if let Some(library) = library(name)
            && library.function_constants().is_empty()
        {
            assert!(!library.kernels().unwrap().is_empty());
        }
    }
}
