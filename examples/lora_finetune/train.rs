use anyhow::Result;
use mlx_primitives::ops::{self, CrossEntropy, Lora};
use mlx_primitives::{Array, eval, transforms};
use mlx_primitives_llama::{Adapters, Checkpoint, Llama};

const BATCH: usize = 8;
/// The number of tokens that a text predicts: all except its first one.
const LENGTH: usize = 64;
const RATE: f32 = 3e-3;
const BETAS: [f32; 2] = [0.9, 0.99];
/// The scale of the update, instead of 1 / rank.
const SCALE: f32 = 2.0;
/// The projections that are updated in each layer.
const PROJECTIONS: [&str; 7] = [
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
];

/// Texts of the same length, `[texts, LENGTH + 1]`.
struct Batches {
    rows: Vec<Vec<u32>>,
    next: usize,
}

impl Batches {
    /// Concatenates the tokens of the texts and cuts them into rows.
    fn new(checkpoint: &Checkpoint, texts: &[String]) -> Result<Self> {
        let mut tokens = Vec::new();
        for text in texts {
            tokens.extend(checkpoint.tokenizer.encode(text)?);
            tokens.extend(&checkpoint.eos);
        }
        let rows = tokens.chunks_exact(LENGTH + 1).map(<[u32]>::to_vec).collect();
        Ok(Self { rows, next: 0 })
    }

    fn batch(&self, rows: impl Iterator<Item = usize>) -> mlx_primitives::Result<[Array; 2]> {
        let rows: Vec<&Vec<u32>> = rows.map(|row| &self.rows[row]).collect();
        let side = |from: usize| {
            let tokens: Vec<u32> =
                rows.iter().flat_map(|row| &row[from..from + LENGTH]).copied().collect();
            Array::from_slice(&tokens, [rows.len() as i32, LENGTH as i32])
        };
        Ok([side(0)?, side(1)?])
    }

    fn next(&mut self) -> mlx_primitives::Result<[Array; 2]> {
        let start = self.next;
        self.next += BATCH;
        self.batch((start..start + BATCH).map(|row| row % self.rows.len()))
    }
}

/// Adam for the low-rank updates of a model.
pub struct Trainer<'a> {
    llama: &'a Llama,
    names: Vec<String>,
    /// A and B of each name; `moments` has their first and second moments.
    parameters: Vec<Array>,
    moments: [Vec<Array>; 2],
    steps: i32,
    train: Batches,
    held_out: Batches,
}

impl<'a> Trainer<'a> {
    pub fn new(
        checkpoint: &'a Checkpoint,
        train: &[String],
        held_out: &[String],
        rank: i32,
    ) -> Result<Self> {
        let llama = &checkpoint.llama;
        let mut names = Vec::new();
        let mut parameters = Vec::new();
        for layer in 0..llama.config().num_hidden_layers {
            for projection in PROJECTIONS {
                let name = format!("model.layers.{layer}.{projection}");
                let initial = Lora::initial(llama.projection_shape(&name)?, rank, SCALE)?;
                parameters.extend([initial.a().clone(), initial.b().clone()]);
                names.push(name);
            }
        }
        eval(&parameters)?;
        let zeros = || parameters.iter().map(|p| p.multiply(0.0)).collect::<Result<_, _>>();
        Ok(Self {
            llama,
            names,
            moments: [zeros()?, zeros()?],
            parameters,
            steps: 0,
            train: Batches::new(checkpoint, train)?,
            held_out: Batches::new(checkpoint, held_out)?,
        })
    }

    /// The number of trained parameters.
    pub fn trained(&self) -> usize {
        self.parameters.iter().map(Array::size).sum()
    }

    /// The number of fixed parameters.
    pub fn fixed(&self) -> usize {
        self.llama.nbytes() / self.llama.dtype().size()
    }

    pub fn adapters(&self) -> mlx_primitives::Result<Adapters> {
        adapters(&self.names, &self.parameters)
    }

    /// Does one step of Adam and returns the loss before it.
    pub fn step(&mut self) -> Result<f32> {
        let [inputs, targets] = self.train.next()?;
        let (llama, names) = (self.llama, &self.names);
        let loss = |parameters: Vec<Array>| {
            mean_loss(llama, &adapters(names, &parameters)?, &inputs, &targets)
        };
        let (value, gradients) = transforms::value_and_grad(loss, &self.parameters)?;
        self.steps += 1;
        for (index, gradient) in gradients.iter().enumerate() {
            self.update(index, gradient)?;
        }
        let [first, second] = &self.moments;
        eval(self.parameters.iter().chain(first).chain(second).chain([&value]))?;
        Ok(value.item::<f32>()?)
    }

    fn update(&mut self, index: usize, gradient: &Array) -> mlx_primitives::Result<()> {
        let square = gradient.square()?;
        let mut corrected = Vec::new();
        for ((moments, new), beta) in self.moments.iter_mut().zip([gradient, &square]).zip(BETAS) {
            moments[index] = moments[index].multiply(beta)?.add(new.multiply(1.0 - beta)?)?;
            corrected.push(moments[index].multiply(1.0 / (1.0 - beta.powi(self.steps)))?);
        }
        let direction = corrected[0].divide(corrected[1].sqrt()?.add(1e-8)?)?;
        let parameter = &mut self.parameters[index];
        *parameter = parameter.subtract(direction.multiply(RATE)?)?;
        Ok(())
    }

    /// The mean loss over all held-out tokens.
    pub fn held_out_loss(&self) -> Result<f32> {
        let [inputs, targets] = self.held_out.batch(0..self.held_out.rows.len())?;
        let loss = mean_loss(self.llama, &self.adapters()?, &inputs, &targets)?;
        Ok(loss.item::<f32>()?)
    }
}

fn adapters(names: &[String], parameters: &[Array]) -> mlx_primitives::Result<Adapters> {
    let update = |(name, pair): (&String, &[Array])| {
        Ok((name.clone(), Lora::new(pair[0].clone(), pair[1].clone(), SCALE)?))
    };
    names.iter().zip(parameters.chunks_exact(2)).map(update).collect()
}

fn mean_loss(
    llama: &Llama,
    adapters: &Adapters,
    inputs: &Array,
    targets: &Array,
) -> mlx_primitives::Result<Array> {
    let logits = llama.forward_adapted(inputs, &mut llama.new_cache(), Some(adapters))?;
    ops::cross_entropy(&logits, targets, CrossEntropy::default())?.mean(..)
}
