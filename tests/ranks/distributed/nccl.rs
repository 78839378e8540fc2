//! The environment variables of ranks that NCCL connects, and values that are refused. Exchanging
//! data by NCCL needs two GPUs, so the ranks of these tests exchange no data.

use std::time::Duration;

use mlx_primitives_ranks::{Backend, is_available};

use super::ranks::{NCCL, Place, Starting};
use crate::support::Checked;

/// Prepares one of two ranks. It has the environment variables that `mlx.launch --backend nccl`
/// sets, except `CUDA_VISIBLE_DEVICES`, and no host file.
fn rank(rank: usize) -> anyhow::Result<Starting> {
    let place = Place::new(1)?;
    let starting = place.rank("join", rank)?.timeout(Duration::from_secs(1));
    let values = ["127.0.0.1", &place.ports[0].to_string(), "2"].map(str::to_owned);
    let starting = starting.without("MLX_HOSTFILE");
    Ok(NCCL.iter().zip(&values).fold(starting, |starting, (name, value)| starting.env(name, value)))
}

#[test(simulated = never)]
fn one_rank_of_nccl_needs_no_connection() -> Checked {
    rank(0)?.env("MLX_WORLD_SIZE", "1").start()?.finish()?.check(0, "joined 0 of 1")
}

#[test(simulated = never)]
fn wrong_variables_of_nccl() -> Checked {
    for (name, value, expected) in [
        ("MLX_RANK", "2", "[MLX_RANK] expected a rank from 0 to 1, the ranks of MLX_WORLD_SIZE"),
        ("MLX_WORLD_SIZE", "", "[MLX_WORLD_SIZE] expected the number of ranks, since NCCL"),
        ("MLX_WORLD_SIZE", "0", "[MLX_WORLD_SIZE] expected the number of ranks, got \"0\""),
        ("NCCL_HOST_IP", "", "[NCCL_HOST_IP] expected the address of rank 0, since NCCL"),
        ("NCCL_PORT", "", "[NCCL_PORT] expected a port of rank 0, since NCCL"),
        ("NCCL_PORT", "x", "[NCCL_HOST_IP, NCCL_PORT] expected an address such as 10.0.0.1:5000"),
    ] {
        rank(0)?.env(name, value).start()?.finish()?.check(2, expected)?;
    }
    let third = rank(2)?.env("MLX_WORLD_SIZE", "3").env("CUDA_VISIBLE_DEVICES", "0,1");
    let expected = "[CUDA_VISIBLE_DEVICES] expected a GPU for each of 3 ranks, got 2: \"0,1\"";
    third.start()?.finish()?.check(2, expected)
}

/// If MLX was built for CPUs only, it has no NCCL.
#[test(simulated = never)]
fn nccl_needs_mlx_for_cuda() -> Checked {
    if is_available(Backend::Nccl) {
        eprintln!("not run: the refusal of NCCL, since this MLX has it");
        return Ok(());
    }
    for gpus in ["0", "1,0"] {
        let ended = rank(1)?.env("CUDA_VISIBLE_DEVICES", gpus).start()?.finish()?;
        ended.check(2, "join: [join] NCCL needs MLX for CUDA, as `pip install")?;
    }
    Ok(())
}
