//! Files of arrays. MLX writes them. Lazy arrays of this crate read their elements from a file when
//! they are used.

use super::stored::Stored;

#[cxx::bridge(namespace = "mlx_primitives::bridge")]
pub(crate) mod ffi {
    struct MetadataEntry {
        key: String,
        value: String,
    }

    unsafe extern "C++" {
        include!("bridge/io.h");

        #[namespace = "mlx::core"]
        #[cxx_name = "array"]
        type MlxArray = crate::ffi::bridge::MlxArray;
        type Dtype = crate::ffi::bridge::Dtype;

        /// A lazy array whose elements `from` reads.
        fn stored(from: Box<Stored>, shape: &[i32], dtype: Dtype) -> Result<UniquePtr<MlxArray>>;
        /// Whether the array has not been read from its file yet.
        fn is_waiting(array: &MlxArray) -> bool;
        /// The elements of an array that has not been read from its file yet.
        fn stored_of(waiting: &MlxArray) -> Result<Box<Stored>>;
        /// Elements `start` to `end` of an axis of an array. If the array is contiguous in its file
        /// and not yet read, and the range begins and ends at block bounds, only they are read.
        fn stored_part(
            whole: &MlxArray,
            axis: usize,
            start: i32,
            end: i32,
        ) -> Result<UniquePtr<MlxArray>>;
        fn save_safetensors(
            path: &str,
            names: &[String],
            arrays: &CxxVector<MlxArray>,
            metadata: &[MetadataEntry],
        ) -> Result<()>;
    }

    extern "Rust" {
        type Stored;

        /// Fills the memory of the array with the stored elements.
        fn read(self: &Stored, bytes: &mut [u8]) -> Result<()>;

        /// A separate handle of the same elements.
        fn copy(self: &Stored) -> Box<Stored>;

        /// Whether the elements are contiguous in the file, and can be read in pieces of `bytes`
        /// bytes. A piece must not end inside a block of packed weights.
        fn divides(self: &Stored, bytes: usize) -> bool;

        /// Selects bytes `start` to `end` of every `pitch` bytes. If `pitch` is 0, selects bytes
        /// `start` to `end` once.
        fn runs(self: &Stored, start: usize, end: usize, pitch: usize) -> Box<Stored>;
    }
}
