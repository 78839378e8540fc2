//! Chooses the GPU of each rank that NCCL connects. A rank sees only this GPU. MLX and NCCL
//! therefore use it for everything.

use std::env;

use super::Backend;
use super::hosts::Place;
use mlx_primitives::collectives::{gpu_count, gpu_uuid};
use mlx_primitives::{Error, Result};

/// The variable that limits the GPUs which CUDA shows to a process. `mlx.launch` gives each rank
/// one GPU.
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// Lets this process see only the GPU of its rank. It runs before CUDA starts.
pub(super) fn choose(place: &Place) -> Result<()> {
    if place.backend != Backend::Nccl {
        return Ok(());
    }
    let visible = env::var_os(VISIBLE);
    let visible = visible.as_deref().map(|text| text.to_string_lossy());
    if let Some(card) = card(visible.as_deref(), place)? {
        // SAFETY: a thread that reads the environment at the same time sees the old or the new list
        // of variables. The C library frees neither the strings nor the list with which the process
        // has started, and no other code in this process sets this variable.
        unsafe { env::set_var(VISIBLE, card) }
    }
    Ok(())
}

/// Returns the GPU of a rank, given the GPUs that the process sees; `None` if the process sees only
/// one.
fn card(visible: Option<&str>, place: &Place) -> Result<Option<String>> {
    let Some(visible) = visible else { return Ok(Some(place.rank.to_string())) };
    let cards: Vec<&str> = visible.split(',').map(str::trim).collect();
    match cards.get(place.rank) {
        _ if cards.len() == 1 => Ok(None),
        Some(card) => Ok(Some((*card).to_owned())),
        None => {
            let (all, ranks) = (cards.len(), place.size);
            let expected = format_args!("a GPU for each of {ranks} ranks, got {all}: {visible:?}");
            Err(Error::argument(VISIBLE, expected))
        }
    }
}

/// Returns the name of this rank's GPU; empty for a backend without GPUs.
pub(super) fn own(place: &Place) -> Result<String> {
    if place.backend != Backend::Nccl {
        return Ok(String::new());
    }
    let (rank, ranks) = (place.rank, place.size);
    let visible = env::var(VISIBLE).unwrap_or_default();
    let expected = match gpu_count()? {
        1 => return gpu_uuid(),
        0 => format!("an NVIDIA GPU for each of {ranks} ranks, got none for rank {rank}"),
        _ => format!("rank {rank} to join before CUDA starts, got a process that uses GPUs"),
    };
    Err(Error::argument("join", format_args!("{expected} ({VISIBLE} is {visible:?})")))
}

/// Returns an error if two ranks have the same GPU, in which case NCCL would end the process.
pub(super) fn check<'a>(cards: impl Iterator<Item = &'a str>) -> Result<()> {
    let mut seen = Vec::new();
    for (rank, card) in cards.enumerate().filter(|(_, card)| !card.is_empty()) {
        if let Some((other, _)) = seen.iter().find(|(_, known)| *known == card) {
            let expected =
                format_args!("a GPU for each rank, got one for ranks {other} and {rank}");
            return Err(Error::argument("join", expected));
        }
        seen.push((rank, card));
    }
    Ok(())
}
