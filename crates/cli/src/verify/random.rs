//! Compares the greedy tokens of a model with random weights on two implementations.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Instant;

use anyhow::{Context, Result};
use mlx_primitives::device::{Device, with_device};
use mlx_primitives::tune::{Choices, with_choices};
use mlx_primitives::{Dtype, files};
use mlx_primitives_llama::{Config, Llama, Options, Quantization};
use serde_json::json;

use super::step::{Found, Step};

/// The number of prompt tokens. It is large enough to use the kernels for many rows.
const PROMPT: u32 = 20;

/// The model to compare.
#[derive(Clone)]
pub struct Random {
    pub config: PathBuf,
    pub quantization: Option<Quantization>,
}

impl Random {
    pub fn step(&self, device: Device, quick: bool) -> Step {
        let random = self.clone();
        Step {
            part: "decode",
            name: "random weights".to_owned(),
            run: Box::new(move || random.compare(device, if quick { 8 } else { 64 })),
        }
    }

    /// To check a GPU, compares its tokens with the tokens of our CPU kernels. To check the CPU,
    /// compares the tokens of our CPU kernels with the tokens of MLX's ops. All compute in float32.
    /// In this type, rounding errors are far smaller than the difference between the logits of the
    /// two most likely tokens in nearly every step.
    fn compare(&self, device: Device, tokens: usize) -> Result<Found> {
        let llama = self.model().with_context(|| self.config.display().to_string())?;
        let (choices, whose) = match device {
            Device::Gpu => (Choices::ours(), "our kernels on the CPU"),
            Device::Cpu => (Choices::mlx(), "MLX's ops"),
        };
        let decoded = |device| with_device(device, || generate(&llama, tokens));
        let expected = with_choices(Rc::new(choices), || decoded(Device::Cpu))?;
        let start = Instant::now();
        let got = decoded(device)?;
        let speed = got.len() as f64 / start.elapsed().as_secs_f64();
        let (parameters, count) = (llama.parameters(), got.len());
        let different = got.iter().collect::<BTreeSet<_>>().len();
        let mut failures = Vec::new();
        if let Some(at) = (0..tokens).find(|&i| got.get(i) != expected.get(i)) {
            let (got, expected) = (got.get(at), expected.get(at));
            failures.push(format!("token {at} is {got:?}, that of {whose} {expected:?}"));
        }
        let said = format!(
            "{count} tokens, {different} different, of {parameters} random weights beside those of \
             {whose}, {speed:.0} tokens a second with the prompt"
        );
        let json = json!({"parameters": parameters, "tokens": count, "tokens_per_second": speed});
        Ok(Found { said, failures, json, ..Found::default() })
    }

    fn model(&self) -> Result<Llama> {
        let config = Config::parse(&files::read_to_string(&self.config)?)?;
        Ok(Llama::random(config, Dtype::Float32, self.quantization, 0)?)
    }
}

fn generate(llama: &Llama, max_tokens: usize) -> Result<Vec<u32>> {
    let vocabulary = llama.config().vocab_size.unsigned_abs().max(1);
    let prompt: Vec<u32> = (0..PROMPT).map(|i| (i * 7919 + 1) % vocabulary).collect();
    let options = Options { max_tokens, ..Options::default() };
    Ok(llama.generate(&prompt, &options)?.collect::<Result<_, _>>()?)
}
