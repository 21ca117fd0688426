//! What kind of file system lies under a path.

use std::path::Path;

/// Whether other hosts may see the same files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FsKind {
    /// A file system of this host alone, as far as is known.
    Local,
    /// Shared by hosts, or served by a process that may share it; with its common name.
    Network(&'static str),
}

/// Magic numbers of statfs(2) of the file systems that hosts share (linux/magic.h, and for those
/// outside the kernel their own headers). FUSE may be anything, so it counts as shared; virtiofs
/// goes by its number too.
const NETWORK: [(u32, &str); 15] = [
    (0x0000_6969, "nfs"),
    (0x0000_517b, "smb"),
    (0xff53_4d42, "cifs"),
    (0xfe53_4d42, "smb2"),
    (0x6573_5546, "fuse"),
    (0x00c3_6400, "ceph"),
    (0x0bd0_0bd0, "lustre"),
    (0x0102_1997, "9p"),
    (0x5346_414f, "afs"),
    (0x6b41_4653, "kafs"),
    (0x7375_7245, "coda"),
    (0x7461_636f, "ocfs2"),
    (0x0116_1970, "gfs2"),
    (0x4750_4653, "gpfs"),
    (0x1983_0326, "beegfs"),
];

/// Asks the file system that holds `path`; blocks.
pub fn fs_kind(path: &Path) -> std::io::Result<FsKind> {
    let stat = rustix::fs::statfs(path)?;
    // The type's width differs between architectures; the numbers have 32 bits.
    Ok(kind_of(stat.f_type as u32))
}

fn kind_of(magic: u32) -> FsKind {
    match NETWORK.iter().find(|(m, _)| *m == magic) {
        Some((_, name)) => FsKind::Network(name),
        None => FsKind::Local,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_numbers_are_told_apart() {
        assert_eq!(kind_of(0x6969), FsKind::Network("nfs"));
        assert_eq!(kind_of(0xff53_4d42), FsKind::Network("cifs"));
        assert_eq!(kind_of(0xef53), FsKind::Local, "ext4");
        assert_eq!(kind_of(0x0102_1994), FsKind::Local, "tmpfs");
    }

    #[test]
    fn procfs_is_local_and_a_missing_path_an_error() {
        assert_eq!(fs_kind(Path::new("/proc")).unwrap(), FsKind::Local);
        assert!(fs_kind(Path::new("/proc/no such")).is_err());
    }
}
