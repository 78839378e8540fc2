//! Files of arrays: what MLX writes itself, and arrays that are read when they are used.

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

        /// A lazy array of as many bytes as are stored.
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

        /// Fills the memory of the array with what is stored.
        fn read(self: &Stored, bytes: &mut [u8]) -> Result<()>;
    }
}
