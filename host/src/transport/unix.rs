//! Unix sockets: binding over a stale file, permissions, paths longer than a socket address holds.
//!
//! Only for the holder of `DIR/.lock`: a dead socket at the path of one of ours belongs to a daemon that is gone. A live
//! one is somebody's, and stays.

use crate::config::Owner;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, socket};
use nix::sys::stat::{Mode, SFlag, fstat, umask};
use nix::unistd::{Gid, Group, Uid, User, fchownat, geteuid};
use std::fs::Permissions;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};
use tokio::net::{UnixListener, UnixStream};

/// Bytes of a path that fit a socket address, its end included (`sun_path`).
const MAX_ADDRESS: usize = 108;

/// What is at the path is not removed.
const NO_SOCKET: &str = "a file that is no socket is there";

/// A listening socket and its file.
#[derive(Debug)]
pub struct Listener {
    /// The socket.
    pub socket: UnixListener,
    file: SocketFile,
}

impl Listener {
    /// Both apart: the file is removed when its part is dropped.
    #[must_use]
    pub fn into_parts(self) -> (UnixListener, SocketFile) {
        (self.socket, self.file)
    }

    /// Whether who connects to the path still comes here: its directory may have been made anew.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        self.file.is_in_place()
    }
}

/// The file of a socket; removed when this is dropped, unless somebody has put another there.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    id: (u64, u64),
}

impl SocketFile {
    /// The number of the inode is not given to another file while the socket is open: the kernel holds the inode.
    fn is_in_place(&self) -> bool {
        std::fs::symlink_metadata(&self.path).is_ok_and(|meta| (meta.dev(), meta.ino()) == self.id)
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.is_in_place() {
            let _gone_already = std::fs::remove_file(&self.path);
        }
    }
}

/// Who may connect.
#[derive(Clone, Debug)]
pub struct Access {
    /// Permissions.
    pub mode: u32,
    /// Owner; `None`: that of the directory.
    pub owner: Option<Owner>,
}

/// Binds beside `path` and puts the socket in the place of what is there, at once: whoever connects meanwhile finds the
/// one or the other. Only of a daemon that follows the one that listens there.
pub fn listen_over(path: &Path, access: &Access) -> io::Result<Listener> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let beside = PathBuf::from(beside);
    let mut listener = listen(&beside, access)?;
    if std::fs::symlink_metadata(path).is_ok_and(|meta| !meta.file_type().is_socket()) {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, NO_SOCKET));
    }
    std::fs::rename(&beside, path)?;
    listener.file.path = path.into();
    Ok(listener)
}

/// Binds and listens. Replaces the file of a dead socket; anything else there is an error. The backlog is the
/// system's largest: a full one stops a whole VM's vsock on some VMMs.
pub fn listen(path: &Path, access: &Access) -> io::Result<Listener> {
    match std::fs::symlink_metadata(path) {
        Ok(meta) if meta.file_type().is_socket() => {
            if is_held(path)? {
                let what = "another process listens there (or another instance, through a link)";
                return Err(io::Error::new(io::ErrorKind::AddrInUse, what));
            }
            std::fs::remove_file(path)?;
        }
        Ok(_) => return Err(io::Error::new(io::ErrorKind::AlreadyExists, NO_SOCKET)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let (address, directory) = short(path)?;
    // Nobody may connect before the permissions are what they should be.
    let before = umask(Mode::from_bits_truncate(0o777));
    let bound = std::os::unix::net::UnixListener::bind(address);
    umask(before);
    let bound = bound?;
    drop(directory);
    let opened = open_socket_file(path)?;
    let stat = fstat(&opened)?;
    // From here on it is removed again when something fails.
    let file = SocketFile { path: path.into(), id: (stat.st_dev, stat.st_ino) };
    give(&opened, path, access).map_err(|error| {
        io::Error::new(error.kind(), format!("the socket can not be given its owner and permissions: {error}"))
    })?;
    bound.set_nonblocking(true)?;
    Ok(Listener { socket: UnixListener::from_std(bound)?, file })
}

/// Whether a process holds the socket whose file this is. Asks with a socket of a type that streams refuse, so that no
/// connection is made; unlike `/proc/net/unix` it sees through links, jails and network namespaces.
fn is_held(path: &Path) -> io::Result<bool> {
    let (address, _directory) = short(path)?;
    let probe =
        socket(AddressFamily::Unix, SockType::Datagram, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK, None)?;
    match nix::sys::socket::connect(probe.as_raw_fd(), &UnixAddr::new(&address)?) {
        Ok(()) | Err(Errno::EPROTOTYPE) => Ok(true),
        Err(Errno::ECONNREFUSED | Errno::ENOENT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The path by which the file of a socket is one and the same: without links and dots in its directory, as far as that
/// is there.
#[must_use]
pub fn resolved(path: &Path) -> PathBuf {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return path.into() };
    if let Ok(parent) = parent.canonicalize() {
        return parent.join(name);
    }
    let mut plain = PathBuf::new();
    for part in parent.components() {
        match part {
            Component::ParentDir => {
                plain.pop();
            }
            part => plain.push(part),
        }
    }
    let real = plain.ancestors().find_map(|there| {
        let rest = plain.strip_prefix(there).ok()?;
        Some(there.canonicalize().ok()?.join(rest))
    });
    real.unwrap_or(plain).join(name)
}

/// Connects. The caller has the deadline.
pub async fn connect(path: &Path) -> io::Result<UnixStream> {
    let (address, _directory) = short(path)?;
    UnixStream::connect(address).await
}

/// A path that fits a socket address: itself, or one through an open descriptor of its directory.
fn short(path: &Path) -> io::Result<(PathBuf, Option<OwnedFd>)> {
    if path.as_os_str().len() < MAX_ADDRESS {
        return Ok((path.into(), None));
    }
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "no path of a socket"));
    };
    let directory = open(parent, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
    let address = Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string()).join(name);
    if address.as_os_str().len() >= MAX_ADDRESS {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the file name of the socket is too long"));
    }
    Ok((address, Some(directory)))
}

/// The socket's file itself, whatever its permissions; never what a link points to.
fn open_socket_file(path: &Path) -> io::Result<OwnedFd> {
    let file = open(path, OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty())?;
    let kind = SFlag::from_bits_truncate(fstat(&file)?.st_mode & SFlag::S_IFMT.bits());
    if kind == SFlag::S_IFSOCK { Ok(file) } else { Err(io::Error::other("the socket was replaced by something else")) }
}

fn give(file: &OwnedFd, path: &Path, access: &Access) -> io::Result<()> {
    let (user, group) = match &access.owner {
        Some(owner) => {
            (owner.user.as_deref().map(user_id).transpose()?, owner.group.as_deref().map(group_id).transpose()?)
        }
        None => {
            let parent = std::fs::metadata(path.parent().unwrap_or_else(|| Path::new("/")))?;
            let ours = fstat(file)?;
            let user = (parent.uid() != ours.st_uid).then(|| Uid::from_raw(parent.uid()));
            let group = (parent.gid() != ours.st_gid).then(|| Gid::from_raw(parent.gid()));
            // A daemon that is not root gives nothing away; it has what it was started with.
            if geteuid().is_root() { (user, group) } else { (None, None) }
        }
    };
    if user.is_some() || group.is_some() {
        fchownat(file, c"", user, group, AtFlags::AT_EMPTY_PATH)?;
    }
    let through = Path::new("/proc/self/fd").join(file.as_raw_fd().to_string());
    std::fs::set_permissions(through, Permissions::from_mode(access.mode))
}

fn user_id(name: &str) -> io::Result<Uid> {
    if let Ok(number) = name.parse() {
        return Ok(Uid::from_raw(number));
    }
    let user = User::from_name(name)?;
    user.map(|user| user.uid).ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("no user `{name}`")))
}

fn group_id(name: &str) -> io::Result<Gid> {
    if let Ok(number) = name.parse() {
        return Ok(Gid::from_raw(number));
    }
    let group = Group::from_name(name)?;
    group.map(|group| group.gid).ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("no group `{name}`")))
}
