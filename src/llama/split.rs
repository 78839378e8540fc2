use crate::distributed::Group;
use crate::error::{Error, Result};

/// How the ranks share the work on a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Scheme {
    /// The results of one process, bit by bit. Each rank holds some rows of every matrix, and its key
    /// heads with their keys and values. It computes its features of an activation, and the ranks
    /// gather those of all. Nothing is summed across ranks, so each number is one dot product on one
    /// rank, in the order that one process has. A decoded token takes four gathers in each layer, one
    /// for the embedding and one for the logits.
    #[default]
    Gather,
    /// The scheme of mlx-lm, with two exchanges in each layer. The output projection of attention and
    /// the down projection are cut by columns, and the ranks add their products, so the results are
    /// those of one process up to rounding. The key heads and the features of the feed-forward layer
    /// have to divide in the ratio of the shares, and the columns of a rank have to be whole groups of
    /// packed weights.
    Reduce,
    /// The results of one process, bit by bit. Each rank holds whole layers, rank 0 also the embedding
    /// and the output projection, and hands the hidden states to the next rank. A prompt of several
    /// steps keeps all ranks busy, a decoded token one at a time.
    Pipeline,
}

impl Scheme {
    /// All schemes.
    pub const ALL: [Self; 3] = [Self::Gather, Self::Reduce, Self::Pipeline];

    /// The name of the scheme: `gather`, `reduce` or `pipeline`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gather => "gather",
            Self::Reduce => "reduce",
            Self::Pipeline => "pipeline",
        }
    }
}

/// One model on the ranks of a group, by a [`Scheme`]: by default one whose results are those of one
/// process, bit by bit.
///
/// Every rank calls the same functions of the model in the same order, with the same arguments. A
/// rank reads only its part of the files. A model on several ranks has no derivatives: a closure that
/// is differentiated gets an error from it, before the ranks exchange anything.
///
/// ```
/// use mlx_primitives::distributed::{Group, Options};
/// use mlx_primitives::llama::Split;
///
/// // Of one rank here; several join under `mlx.launch`.
/// let group = Group::join(Options::default())?;
/// let checkpoint = Split::new(&group, &[])?.demo()?;
/// let prompt = checkpoint.tokenizer.encode("Once upon a time")?;
/// let options = mlx_primitives::llama::Options { max_tokens: 4, ..Default::default() };
/// assert_eq!(checkpoint.generate(&prompt, &options)?.count(), 4);
/// group.leave()?;
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
#[derive(Clone)]
pub struct Split {
    /// `None` for a rank that is only planned.
    pub(super) group: Option<Group>,
    pub(super) rank: usize,
    /// The share of each rank in the rows of a matrix, or in the layers.
    pub(super) shares: Vec<u32>,
    pub(super) scheme: Scheme,
}

impl Split {
    /// A split across the ranks of `group`. `shares` has a number for each rank, in the ratio of
    /// which the ranks hold rows and heads, or layers, such as `[3, 1]` if rank 0 has three times the memory;
    /// without any, all shares are equal.
    ///
    /// # Errors
    ///
    /// Returns an error unless there are no shares, or one above 0 for each rank.
    pub fn new(group: &Group, shares: &[u32]) -> Result<Self> {
        let shares = if shares.is_empty() { vec![1; group.size()] } else { shares.to_vec() };
        if shares.len() != group.size() || shares.contains(&0) {
            return Err(Error::argument(
                "split",
                format_args!("a share above 0 for each of {} ranks, got {shares:?}", group.size()),
            ));
        }
        Ok(Self { group: Some(group.clone()), rank: group.rank(), shares, scheme: Scheme::Gather })
    }

    /// A rank of a group that does not exist yet. Its models load by
    /// [`load_lazily`](Self::load_lazily), and tell the bytes that the rank would hold and send; they
    /// compute nothing.
    ///
    /// # Errors
    ///
    /// Returns an error unless `rank` has a share, and all shares are above 0.
    ///
    /// ```
    /// use mlx_primitives::llama::{Llama, Split};
    ///
    /// let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/demo");
    /// let whole = Llama::load_lazily(demo)?.nbytes();
    /// let half = Split::planned(&[1, 1], 0)?.load_lazily(demo)?.nbytes();
    /// assert!(half > whole / 2 && half < whole / 20 * 11); // each rank has all norms
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn planned(shares: &[u32], rank: usize) -> Result<Self> {
        if rank >= shares.len() || shares.contains(&0) {
            return Err(Error::argument(
                "split",
                format_args!("shares above 0 and a rank among them, got {shares:?} and {rank}"),
            ));
        }
        Ok(Self { group: None, rank, shares: shares.to_vec(), scheme: Scheme::Gather })
    }

    /// The split by another scheme. All ranks choose the same one.
    ///
    /// ```
    /// use mlx_primitives::llama::{Scheme, Split};
    ///
    /// let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/demo");
    /// let split = Split::planned(&[3, 1], 1)?.with_scheme(Scheme::Pipeline);
    /// assert!(split.load_lazily(demo)?.nbytes() > 0); // the last of four layers
    /// // Two key heads cannot be divided by three.
    /// let split = Split::planned(&[1, 1, 1], 0)?.with_scheme(Scheme::Reduce);
    /// assert!(split.load_lazily(demo).is_err());
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    #[must_use]
    pub fn with_scheme(self, scheme: Scheme) -> Self {
        Self { scheme, ..self }
    }
}
