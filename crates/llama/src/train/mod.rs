//! Training as mlx-lm does it: optimizers and schedules, texts in JSONL, and a trainer of low-rank
//! updates or of whole layers whose state can be saved and resumed.

mod data;
mod estimate;
mod optimizer;
mod schedule;
mod state;
mod trainable;
mod trainer;

pub use data::{Batch, Dataset};
pub use estimate::TrainingEstimate;
pub use optimizer::{Adafactor, Adam, Optimizer, OptimizerState, Parameters, Sgd, clip};
pub use schedule::Schedule;
pub use trainable::{Kind, Trainable};
pub use trainer::{Settings, Step, Trainer, evaluate};
