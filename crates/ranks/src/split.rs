use mlx_primitives::{Dtype, Error, Result};
use mlx_primitives_llama::{Config, Llama, Quantization, base::Weights};

use super::cuts::Cuts;
use super::group::Group;
use super::part::RankPart;
use super::scheme::Scheme;

/// Divides a model among the ranks of a group, by a [`Scheme`]. With the default scheme, on CPUs,
/// the results equal the results of one process bit for bit.
///
/// Every rank calls the same functions of the model in the same order, with the same arguments. A
/// rank reads only its part of the files. A model on several ranks has no derivatives: inside a
/// closure that is differentiated, its functions return an error before the ranks exchange
/// anything.
///
/// ```
/// use mlx_primitives_llama::Checkpoint;
/// use mlx_primitives_ranks::{Group, Options, Split};
///
/// // The group has one rank here, and several ranks under `mlx.launch`.
/// let group = Group::join(Options::default())?;
/// let split = Split::new(&group, &[])?;
/// let checkpoint = Checkpoint::demo_part(|config, weights| split.hold(config, weights))?;
/// let prompt = checkpoint.tokenizer.encode("Once upon a time")?;
/// let options = mlx_primitives_llama::Options { max_tokens: 4, ..Default::default() };
/// assert_eq!(checkpoint.generate(&prompt, &options)?.count(), 4);
/// group.leave()?;
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
#[derive(Clone)]
pub struct Split {
    /// `None` for a rank of a group that does not exist yet ([`Split::planned`]).
    pub(crate) group: Option<Group>,
    pub(crate) rank: usize,
    /// For each rank, the number that determines how many rows or layers the rank holds.
    pub(crate) shares: Vec<u32>,
    pub(crate) scheme: Scheme,
}

impl Split {
    /// Makes a split across the ranks of `group`. `shares` has a number for each rank, and the
    /// ranks hold rows and heads, or layers, in this ratio. Use `[3, 1]` if rank 0 has three times
    /// the memory of rank 1. If `shares` is empty, all shares are equal.
    ///
    /// # Errors
    ///
    /// Returns an error unless `shares` is empty or has one number above 0 for each rank.
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

    /// Makes a split for one rank of a group that does not exist yet. Load its models by
    /// [`Llama::load_part_lazily`]. They compute nothing, and only tell how many bytes the rank
    /// would hold and send.
    ///
    /// # Errors
    ///
    /// Returns an error unless `rank` has a share, and all shares are above 0.
    ///
    /// ```
    /// use mlx_primitives_llama::Llama;
    /// use mlx_primitives_ranks::Split;
    ///
    /// let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/../llama/assets/demo");
    /// let whole = Llama::load_lazily(demo)?.nbytes();
    /// let split = Split::planned(&[1, 1], 0)?;
    /// let half = Llama::load_part_lazily(demo, |config, weights| split.hold(config, weights))?;
    /// // Each rank has all norms.
    /// assert!(half.nbytes() > whole / 2 && half.nbytes() < whole / 20 * 11);
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

    /// Selects another scheme. All ranks must select the same one.
    ///
    /// ```
    /// use mlx_primitives_llama::Llama;
    /// use mlx_primitives_ranks::{Scheme, Split};
    ///
    /// let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/../llama/assets/demo");
    /// let load = |split: Split| {
    ///     Llama::load_part_lazily(demo, |config, weights| split.hold(config, weights))
    /// };
    /// let split = Split::planned(&[3, 1], 1)?.with_scheme(Scheme::Pipeline);
    /// assert!(load(split)?.nbytes() > 0); // the last of four layers
    /// // Four layers cannot be divided by five.
    /// let split = Split::planned(&[1; 5], 0)?.with_scheme(Scheme::Pipeline);
    /// assert!(load(split).is_err());
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    #[must_use]
    pub fn with_scheme(self, scheme: Scheme) -> Self {
        Self { scheme, ..self }
    }

    /// The ranges of each axis of a model, one range for each rank.
    pub(crate) fn cuts(&self, config: &Config) -> Result<Cuts> {
        Cuts::new(self.scheme, self.rank, &self.shares, config)
    }

    /// Restricts weights to the part that this rank holds. [`Llama::load_part`],
    /// [`Llama::load_part_lazily`], and `load_part` and `demo_part` of
    /// [`Checkpoint`](mlx_primitives_llama::Checkpoint) take a function that calls it.
    ///
    /// # Errors
    ///
    /// Returns an error for a model with fewer query heads (in a pipeline, layers) than ranks.
    pub fn hold(&self, config: &Config, weights: Weights) -> Result<Weights> {
        if self.shares.len() < 2 {
            return Ok(weights);
        }
        let said = format!("{:?} {:?}", self.scheme, self.shares);
        let part = RankPart::new(self.group.clone(), self.cuts(config)?, said)?;
        Ok(weights.held_by(part))
    }

    /// Makes this rank's part of the model that [`Llama::random`] makes.
    ///
    /// # Errors
    ///
    /// Returns an error if [`Llama::random`] would, and for a model with fewer query heads (in a
    /// pipeline, layers) than ranks.
    pub fn random(
        &self,
        config: Config,
        dtype: Dtype,
        quantization: Option<Quantization>,
        seed: u64,
    ) -> Result<Llama> {
        Llama::random_part(config, dtype, quantization, seed, |config, weights| {
            self.hold(config, weights)
        })
    }
}
