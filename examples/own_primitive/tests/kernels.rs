//! Tests the kernels alone, in the simulator: `mean_square` in each kind of thread order
//! ([`Schedule`]), with the bytes that it reads and writes, and `soft_cap` in the default order.
#![cfg(target_os = "linux")]

use half::bf16;
use metal_sim::{Buffer, Constants, Dispatch, Library, Schedule};

#[test]
fn mean_square_reads_each_element_once() -> metal_sim::Result<()> {
    let library = Library::from_text(include_str!("../metal/own.metal"))?;
    let kernel = library.kernel("mean_square_float32", &Constants::new())?;
    let x: Vec<f32> = (0..3 * 100).map(|i| (i % 7) as f32).collect();
    for schedule in Schedule::ALL {
        let mut y = [0.0f32; 3];
        let report = Dispatch::new(&kernel)
            .buffer(0, Buffer::input(&x))
            .buffer(1, Buffer::output(&mut y))
            .value(2, 100u32)
            .grid_groups([3, 1, 1], [32, 1, 1])
            .schedule(schedule)
            .run()?
            .check()?; // races, stray accesses, unwritten outputs
        assert_eq!((report.buffers[&0].read_bytes, report.buffers[&1].written_bytes), (1200, 12));
        for (y, row) in y.iter().zip(x.chunks(100)) {
            let want = row.iter().map(|x| x * x).sum::<f32>() / 100.0;
            assert!((y - want).abs() < 1e-4, "{schedule:?}: {y} {want}");
        }
    }
    Ok(())
}

#[test]
fn soft_cap_in_half_precision() -> metal_sim::Result<()> {
    let library = Library::from_text(include_str!("../metal/own.metal"))?;
    let kernel = library.kernel("soft_cap_bfloat16", &Constants::new())?;
    let x: Vec<bf16> = (0..70).map(|i| bf16::from_f32(i as f32 - 35.0)).collect();
    let mut y = vec![bf16::ZERO; 70];
    let mut params = 70u32.to_le_bytes().to_vec();
    params.extend(30.0f32.to_le_bytes());
    Dispatch::new(&kernel)
        .buffer(0, Buffer::input(&x))
        .buffer(1, Buffer::output(&mut y))
        .bytes(2, &params)
        .grid_groups([3, 1, 1], [32, 1, 1]) // more threads than elements
        .run()?
        .check()?;
    for (y, x) in y.iter().zip(&x) {
        let want = 30.0 * (x.to_f32() / 30.0).tanh();
        assert!((y.to_f32() - want).abs() <= 0.13, "{x}: {y} {want}");
    }
    Ok(())
}
