/// How the ranks share the work on a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Scheme {
    /// The results of one process, bit by bit. Each rank holds some rows of every matrix, and its
    /// key heads with their keys and values. It computes its features of an activation, and then
    /// all ranks gather all features. Nothing is summed across ranks, so each number is one dot
    /// product on one rank, in the order that one process has. A decoded token takes four gathers
    /// in each layer, one for the embedding and one for the logits.
    #[default]
    Gather,
    /// The results of one process, bit by bit. Each rank holds whole layers, rank 0 also the
    /// embedding and the output projection, and hands the hidden states to the next rank. A prompt
    /// of several steps keeps all ranks busy, a decoded token one at a time.
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
