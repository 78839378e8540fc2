//! Files of arrays: MLX writes them, and arrays of this crate read them when they are used.

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
        /// Reads the elements of an array that is not yet read from its file, into `bytes`. Returns
        /// false for another array.
        fn read_stored(waiting: &MlxArray, bytes: &mut [u8]) -> Result<bool>;
        /// Elements `start` to `end` of an axis of an array. If the array is not yet read from its
        /// file, only these elements are read, if they are whole blocks.
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

        /// Whether the elements are contiguous in the file, and `bytes` bytes can be read alone.
        fn divides(self: &Stored, bytes: usize) -> bool;

        /// Bytes `start` to `end` of every `pitch` bytes, or these bytes alone if `pitch` is 0.
        fn runs(self: &Stored, start: usize, end: usize, pitch: usize) -> Box<Stored>;
    }
}
