//! Training as in mlx-lm: optimizers, learning rate schedules, data sets in JSONL files, and a
//! trainer for low-rank updates or whole layers. The state of a training run can be saved and
//! resumed.

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
