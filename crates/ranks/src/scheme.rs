/// How the ranks share the work on a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Scheme {
    /// On CPUs, the results equal the results of one process bit for bit. Each rank holds some rows
    /// of every matrix, and some key heads with their keys and values. A rank computes its features
    /// of an activation, and then all ranks gather all features. The ranks do not sum partial
    /// results: a single rank computes each dot product completely, in the same order as one
    /// process. For a decoded token, the ranks gather four times in each layer, and also once for
    /// the embedding and once for the logits.
    #[default]
    Gather,
    /// The results equal the results of one process bit for bit. Each rank holds complete layers,
    /// and sends the hidden states to the next rank. Rank 0 also holds the embedding and the output
    /// projection. A prompt that is processed in several steps keeps all ranks busy. A decoded
    /// token keeps one rank busy at a time.
    Pipeline,
}

impl Scheme {
    /// All schemes.
    pub const ALL: [Self; 2] = [Self::Gather, Self::Pipeline];

    /// The name of the scheme: `gather` or `pipeline`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gather => "gather",
            Self::Pipeline => "pipeline",
        }
    }
}
