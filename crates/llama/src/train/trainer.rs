use mlx_primitives::{Array, Error, Result, eval, transforms};

use super::data::Dataset;
use super::optimizer::{Optimizer, OptimizerState, Parameters, clip};
use super::schedule::Schedule;
use super::trainable::Trainable;
use crate::model::{Adapters, Llama, Trained};

/// The maximum number of points of a run's loss curve.
const POINTS: usize = 4096;

/// The options of a run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The optimizer of the parameters.
    pub optimizer: Optimizer,
    /// The learning rate of each update.
    pub schedule: Schedule,
    /// The number of texts in a batch.
    pub batch_size: usize,
    /// The number of batches per update. An update uses the mean of their gradients.
    pub accumulation: u64,
    /// The maximum number of tokens of a text. Longer texts are cut.
    pub max_length: usize,
    /// The maximum norm of the gradients. Gradients with a larger norm are scaled down to this
    /// norm.
    pub max_norm: Option<f64>,
    /// Whether the backward pass runs each layer again instead of keeping its results.
    pub recompute: bool,
    /// The random seed for the initial parameters, the order of the batches and dropout.
    pub seed: u64,
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// The mean loss of the batch's targets before the step, in nats.
    pub loss: f32,
    /// The number of targets.
    pub tokens: usize,
    /// The learning rate of the last update, or of the first update if there was none yet.
    pub rate: f64,
}

/// A training run: the parameters, the optimizer's state, and the number of steps.
pub struct Trainer<'a> {
    pub(super) llama: &'a Llama,
    pub(super) data: &'a Dataset,
    pub(super) trainable: Trainable,
    pub(super) settings: Settings,
    pub(super) parameters: Parameters,
    /// For each matrix that DoRA updates, the sum of squares of each row.
    squares: Parameters,
    pub(super) optimizer: OptimizerState,
    /// The sum of the gradients since the last update.
    pub(super) gradients: Parameters,
    pub(super) steps: u64,
    pub(super) trained_tokens: u64,
    /// The sum and the number of losses since the last report. `curve` has the number of steps and
    /// the mean loss at each earlier report.
    pub(super) recent: (f64, u64),
    pub(super) curve: Vec<(u64, f64)>,
    pass: Option<(u64, Vec<usize>)>,
}

impl<'a> Trainer<'a> {
    /// Starts a run.
    ///
    /// # Errors
    ///
    /// Returns an error if a batch has no texts or more texts than the data, if `accumulation` is 0
    /// or `max_length` is below 2, if an option of the optimizer is invalid, or if there is no
    /// memory for the parameters.
    pub fn new(
        llama: &'a Llama,
        data: &'a Dataset,
        trainable: Trainable,
        settings: Settings,
    ) -> Result<Self> {
        let refuse = |expected: std::fmt::Arguments| Err(Error::argument("training", expected));
        let Settings { batch_size, accumulation, max_length, .. } = settings;
        if batch_size == 0 || batch_size > data.len() {
            let texts = data.len();
            return refuse(format_args!("a batch of 1 to {texts} texts, got {batch_size}"));
        }
        if accumulation == 0 || max_length < 2 {
            return refuse(format_args!("at least 1 batch an update and 2 tokens a text"));
        }
        let parameters = trainable.initial(llama, settings.seed)?;
        let optimizer = settings.optimizer.state(&parameters)?;
        // DoRA's magnitudes `P.m` start as the norms of the rows.
        let squares = parameters.iter().filter_map(|(name, norms)| {
            let path = name.strip_suffix(".m")?.to_owned();
            Some(norms.square().map(|squares| (path, squares)))
        });
        let squares = squares.collect::<Result<Parameters>>()?;
        eval(optimizer.arrays.values().chain(squares.values()))?;
        Ok(Self {
            llama,
            data,
            trainable,
            settings,
            parameters,
            squares,
            optimizer,
            gradients: Parameters::new(),
            steps: 0,
            trained_tokens: 0,
            recent: (0.0, 0),
            curve: Vec::new(),
            pass: None,
        })
    }

    /// The trained arrays by name. A projection P with an update has `P.lora_a` `[rank, inputs]`,
    /// `P.lora_b` `[outputs, rank]` and, in DoRA, `P.m` `[outputs]`. If whole layers are trained,
    /// the arrays have the names of the weights.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// The number of steps so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The number of targets of all steps so far.
    pub fn trained_tokens(&self) -> u64 {
        self.trained_tokens
    }

    /// The current low-rank updates. The result is empty if whole layers are trained.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no memory for the updates.
    pub fn adapters(&self) -> Result<Adapters> {
        self.trainable.adapters(&self.parameters)
    }

    /// The model with the current parameters.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no memory for the model.
    pub fn model(&self) -> Result<Llama> {
        self.trainable.model(self.llama, &self.parameters)
    }

    /// Returns the mean loss of the next batch, the gradients of this loss, and the number of
    /// targets in the batch. Nothing is evaluated.
    #[doc(hidden)]
    pub fn gradients(&mut self) -> Result<(Array, Parameters, usize)> {
        let Settings { batch_size, max_length, recompute, seed, .. } = self.settings;
        let batches = (self.data.len() / batch_size) as u64;
        let (pass, at) = (self.steps / batches, (self.steps % batches) as usize);
        if self.pass.as_ref().is_none_or(|(of, _)| *of != pass) {
            self.pass = Some((pass, self.data.order(batch_size, seed, pass)));
        }
        let number = self.pass.as_ref().and_then(|(_, order)| order.get(at)).copied().unwrap_or(0);
        let batch = self.data.batch(number, batch_size, max_length)?;

        let names: Vec<String> = self.parameters.keys().cloned().collect();
        let arrays: Vec<Array> = self.parameters.values().cloned().collect();
        let (llama, trainable, step) = (self.llama, &self.trainable, [seed, self.steps]);
        let targets = batch.tokens.max(1) as f32;
        let mean = |arrays: Vec<Array>| {
            let parameters = names.iter().cloned().zip(arrays).collect();
            let pair = [&batch.inputs, &batch.targets];
            let sum = trainable.loss(llama, &parameters, &self.squares, pair, recompute, step)?;
            sum.divide(targets)
        };
        let (loss, gradients) = transforms::value_and_grad(mean, &arrays)?;
        // The order of the additions in a sum depends on the layout of the array. A resumed run
        // reads contiguous gradients from a file. To give the same bits, every run makes its
        // gradients contiguous.
        let gradients = gradients.iter().map(Array::contiguous).collect::<Result<Vec<_>>>()?;
        Ok((loss, names.iter().cloned().zip(gradients).collect(), batch.tokens))
    }

    /// Trains on the next batch.
    ///
    /// # Errors
    ///
    /// Returns an error if memory is short, or if the loss is not a finite number.
    pub fn step(&mut self) -> Result<Step> {
        let (loss, mut gradients, tokens) = self.gradients()?;
        let accumulation = self.settings.accumulation;
        for (name, sum) in &self.gradients {
            if let Some(gradient) = gradients.get_mut(name) {
                *gradient = gradient.add(sum)?;
            }
        }
        self.gradients = gradients;
        if self.steps.saturating_add(1).is_multiple_of(accumulation) {
            self.update(accumulation)?;
        }
        let new = self.parameters.values().chain(self.optimizer.arrays.values());
        eval(new.chain(self.gradients.values()).chain([&loss]))?;
        let loss = loss.item::<f32>()?;
        self.steps = self.steps.saturating_add(1);
        if !loss.is_finite() {
            let (step, expected) = (self.steps, "a loss that is a number");
            let hint = "a smaller learning rate may help";
            let reason = format_args!("{expected}, got {loss} in step {step}: {hint}");
            return Err(Error::argument("training", reason));
        }
        self.trained_tokens = self.trained_tokens.saturating_add(tokens as u64);
        self.recent = (self.recent.0 + f64::from(loss), self.recent.1.saturating_add(1));
        let rate = self.settings.schedule.rate(self.optimizer.updates.saturating_sub(1));
        Ok(Step { loss, tokens, rate })
    }

    /// Updates the parameters with the mean of the summed gradients.
    fn update(&mut self, batches: u64) -> Result<()> {
        let mut gradients = std::mem::take(&mut self.gradients);
        if batches > 1 {
            for gradient in gradients.values_mut() {
                *gradient = gradient.divide(batches as f32)?;
            }
        }
        if let Some(most) = self.settings.max_norm {
            gradients = clip(&gradients, most)?.0;
        }
        let rate = self.settings.schedule.rate(self.optimizer.updates);
        let Settings { optimizer, .. } = &self.settings;
        optimizer.update(&mut self.parameters, &gradients, &mut self.optimizer, rate)
    }

    /// Returns the mean of the losses since the last report, and adds it to the curve. Returns
    /// `None` if there was no step since the last report.
    pub fn report(&mut self) -> Option<f64> {
        let (sum, count) = std::mem::take(&mut self.recent);
        let mean = (count > 0).then(|| sum / count as f64);
        if self.curve.len() >= POINTS {
            let mut points = 0..;
            self.curve.retain(|_| points.next().is_some_and(|at: usize| at % 2 == 1));
        }
        self.curve.extend(mean.map(|mean| (self.steps, mean)));
        mean
    }

    /// The number of steps and the mean loss at each report. If there are 4096 points, the next
    /// report removes every second point.
    pub fn curve(&self) -> &[(u64, f64)] {
        &self.curve
    }
}

/// Computes the mean loss of all targets in up to `most` batches of `rows` texts. Each text is cut
/// to `longest` tokens, and the seed 0 determines the order of the batches. `progress` is called
/// after each batch.
///
/// # Errors
///
/// Returns an error if the data do not fill a batch, if `rows` or `most` is 0, or if memory is
/// short.
pub fn evaluate(
    llama: &Llama,
    data: &Dataset,
    rows: usize,
    longest: usize,
    most: Option<usize>,
    mut progress: impl FnMut(),
) -> Result<f64> {
    let order = data.order(rows, 0, 0);
    if order.is_empty() || rows == 0 || most == Some(0) {
        let texts = data.len();
        let expected = format_args!("a batch of 1 to {texts} texts, got {rows}");
        return Err(Error::argument("evaluation", expected));
    }
    let (mut sum, mut tokens) = (0.0, 0);
    for number in order.into_iter().take(most.unwrap_or(usize::MAX)) {
        let batch = data.batch(number, rows, longest)?;
        let pair = [&batch.inputs, &batch.targets];
        let losses = llama.losses(&Trained::default(), pair, false)?;
        sum += f64::from(losses.astype(mlx_primitives::Dtype::Float32)?.sum(..)?.item::<f32>()?);
        tokens += batch.tokens;
        progress();
    }
    Ok(sum / tokens.max(1) as f64)
}
