//! Looks at what a broker is going to need before anything is touched.

use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};

/// Why a broker cannot start here.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    #[error("cannot listen on {address} ({key}): {source}")]
    Listen { key: &'static str, address: String, source: io::Error },
    #[error("cannot create the data directory {path}: {source}")]
    Create { path: PathBuf, source: io::Error },
    #[error("cannot write to the data directory {path}: {source}")]
    NotWritable { path: PathBuf, source: io::Error },
    #[error("cluster.dir {control} and the data directory {data} lie in one another: give two directories side by side")]
    Nested { control: PathBuf, data: PathBuf },
    #[error(
        "the data directory {0} has control-plane files in itself (__cluster): serve it without cluster.dir, or move \
         them away if they are not of this cluster"
    )]
    Together(PathBuf),
}

/// Whether `address` is free, as seen now. Binding it for good comes later and may still fail.
pub fn check_listener(key: &'static str, address: &str) -> Result<(), PlaceError> {
    let failed = |source| PlaceError::Listen { key, address: address.to_owned(), source };
    TcpListener::bind(address).map(drop).map_err(failed)
}

/// Makes sure that the data directory exists and may be written.
pub fn data_dir(path: &Path) -> Result<(), PlaceError> {
    let create = |source| PlaceError::Create { path: path.to_owned(), source };
    std::fs::create_dir_all(path).map_err(create)?;
    let wanted = rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
    rustix::fs::access(path, wanted)
        .map_err(|e| PlaceError::NotWritable { path: path.to_owned(), source: e.into() })
}

/// Makes sure that the control plane's files, which lie in `control`, and the data do not get mixed. Both exist, and are
/// absolute.
pub fn check_apart(control: &Path, data: &Path) -> Result<(), PlaceError> {
    if control.starts_with(data) || data.starts_with(control) {
        return Err(PlaceError::Nested { control: control.to_owned(), data: data.to_owned() });
    }
    if data.join("__cluster").exists() {
        return Err(PlaceError::Together(data.to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_port_is_named_with_its_key() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap().to_string();
        let line = check_listener("listeners", &address).unwrap_err().to_string();
        assert_eq!(
            line,
            format!("cannot listen on {address} (listeners): Address already in use (os error 98)")
        );
        drop(taken);
        check_listener("listeners", &address).unwrap();
    }

    #[test]
    fn control_plane_and_data_do_not_get_mixed() {
        let dir = tempfile::tempdir().unwrap();
        let (control, data) = (dir.path().join("control"), dir.path().join("data"));
        for d in [&control, &data] {
            data_dir(d).unwrap();
        }
        check_apart(&control, &data).unwrap();
        for (a, b) in
            [(&control, &control), (&control, &dir.path().to_owned()), (&dir.path().to_owned(), &data)]
        {
            assert!(
                matches!(check_apart(a, b), Err(PlaceError::Nested { .. })),
                "{} {}",
                a.display(),
                b.display()
            );
        }
        std::fs::create_dir(data.join("__cluster")).unwrap();
        assert!(matches!(check_apart(&control, &data), Err(PlaceError::Together(d)) if d == data));
    }

    #[test]
    fn a_missing_data_directory_is_made_and_an_impossible_one_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let wanted = dir.path().join("a/b");
        data_dir(&wanted).unwrap();
        assert!(wanted.is_dir());
        std::fs::write(dir.path().join("file"), "").unwrap();
        let under_a_file = dir.path().join("file/data");
        let line = data_dir(&under_a_file).unwrap_err().to_string();
        let path = under_a_file.display();
        assert_eq!(line, format!("cannot create the data directory {path}: Not a directory (os error 20)"));
    }
}
