//! A process that drops a running generation ends at once. After failures of other evaluations, a
//! model decodes the same tokens. Each case is a child process: this test binary, with an
//! environment variable that names its role, which is the case.

use harness::roles::{ends, rounds};
use mlx_primitives::custom::{View, ViewMut, apply_one};
use mlx_primitives::{Array, Error, Result};
use mlx_primitives_llama::{Checkpoint, Options};

use crate::support::custom::Computed;
use crate::support::{Checked, on_cpu};

fn fails(_: &[View<'_>], _: &mut [ViewMut<'_>]) -> Result<()> {
    Err(Error::argument("fails", "no call"))
}

fn decode(tokens: usize) -> Result<Vec<u32>> {
    let checkpoint = Checkpoint::demo()?;
    let prompt = checkpoint.tokenizer.encode("Once upon a time")?;
    let options = Options { max_tokens: tokens, ..Options::default() };
    checkpoint.llama.generate(&prompt, &options)?.collect()
}

/// Runs a role in the child process. `main` then returns this status.
pub fn play(role: &str) -> Checked<u8> {
    match role {
        "dropped generation" => {
            let checkpoint = Checkpoint::demo()?;
            let prompt = checkpoint.tokenizer.encode("Once upon a time")?;
            let options = Options { max_tokens: 100_000, ..Options::default() };
            let mut generation = checkpoint.llama.generate(&prompt, &options)?;
            for _ in 0..5 {
                generation.next().transpose()?;
            }
        }
        "failures" => on_cpu(|| {
            let want = decode(40)?;
            let x = Array::ones::<f32>(&[16])?;
            for _ in 0..rounds(40) {
                let failed = apply_one(Computed("fails", fails), &[&x])?;
                assert!(failed.add(1.0)?.eval().is_err());
                assert_eq!(decode(2)?, want[..2]);
            }
            assert_eq!(decode(40)?, want);
            Ok(())
        })?,
        _ => anyhow::bail!("there is no role {role}"),
    }
    Ok(0)
}

#[test(simulated = never)]
fn dropped_generation() -> Checked {
    ends("dropped generation", 0, rounds(5))
}

#[test(simulated = never)]
fn decoding_goes_on_after_failures() -> Checked {
    ends("failures", 0, 1)
}
