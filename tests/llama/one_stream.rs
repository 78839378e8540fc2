//! Decoding on one CPU stream gives the same bits as MLX's evaluation of the same graphs.

use mlx_primitives::device::{Device, Stream, with_device};
use mlx_primitives::ops::QuantizedMode;
use mlx_primitives::{Array, async_eval};
use mlx_primitives_llama::{CacheKind, Checkpoint, Quantization};

use crate::support::Checked;
use crate::support::compare::{assert_same, eval_by_mlx};

#[test(simulated = never)]
fn models_decode_the_same_bits() -> Checked {
    with_device(Device::Cpu, || {
        let plain = Checkpoint::demo()?.llama;
        let mxfp4 = Quantization { group_size: 32, bits: 4, mode: QuantizedMode::Mxfp4 };
        let models = [
            plain.quantized(Quantization::affine(32, 4))?,
            plain.quantized(Quantization::affine(64, 8))?,
            plain.quantized(mxfp4)?,
            plain,
        ];
        let kinds = [
            CacheKind::Plain,
            CacheKind::Quantized { group_size: 32, bits: 8 },
            CacheKind::Rotating { max_size: 12, keep: 2 },
        ];
        let elsewhere = Stream::new(Device::Cpu)?;
        for (llama, kind) in models.iter().flat_map(|llama| kinds.map(|kind| (llama, kind))) {
            for batch in [1, 3] {
                let (mut ours, mut theirs) = (llama.new_cache_of(kind)?, llama.new_cache_of(kind)?);
                for time in [9, 1, 1, 2, 1, 1, 1, 1, 1] {
                    let tokens: Vec<u32> = (0..batch * time).map(|i| 7 + 31 * i as u32).collect();
                    let tokens = Array::from_slice(&tokens, (batch, time))?;
                    let (a, b) =
                        (llama.forward(&tokens, &mut ours)?, llama.forward(&tokens, &mut theirs)?);
                    async_eval([&a])?;
                    eval_by_mlx(&[&b], &elsewhere)?;
                    assert_same(&a, &b, "logits")?;
                    for (a, b) in ours.arrays().zip(theirs.arrays()) {
                        assert_same(a, b, "a cache's buffer")?;
                    }
                }
            }
        }
        Ok(())
    })
}
