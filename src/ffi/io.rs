//! Files of arrays: MLX writes them, and arrays of this crate read them when they are used.

use crate::io::stored::Stored;

#[cxx::bridge(namespace = "mlx_primitives::bridge")]
pub(crate) mod bridge {
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
    }
}
