"""A small volume of its own, so that it can be filled: ext4 in a loop-mounted file, else a tmpfs.

ext4 first: its fsync is a real one. Either needs root. Without it the data lies in an ordinary
directory, `why_not` says why, and nothing may be filled.
"""

import os
import subprocess

MIB = 1 << 20
SIZE = 512 * MIB


def quiet(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    return None if done.returncode == 0 else f"{command[0]}: {(done.stderr or done.stdout).strip()[:200]}"


class Volume:
    def __init__(self, work):
        self.path = os.path.join(work, "volume")
        self.image = os.path.join(work, "volume.img")
        self.ballast = os.path.join(self.path, "ballast")
        self.mounted = False
        self.kind = None
        self.why_not = None
        os.makedirs(self.path)

    def mount(self):
        if os.geteuid() != 0:
            self.kind, self.why_not = "an ordinary directory", "only root may mount a small volume"
            return
        problem = self.mount_ext4()
        if problem is None:
            self.kind = "ext4 in a loop-mounted file"
        else:
            size = f"size={SIZE // MIB}m"
            other = quiet("mount", "-t", "tmpfs", "-o", size, "highwater-cluster", self.path)
            if other is not None:
                self.kind, self.why_not = "an ordinary directory", f"{problem}; {other}"
                return
            self.kind = f"tmpfs, whose fsync does nothing, as no ext4 could be mounted ({problem})"
        self.mounted = True

    def mount_ext4(self):
        try:
            with open(self.image, "wb") as image:
                image.truncate(SIZE)
            problem = quiet("mkfs.ext4", "-q", "-F", "-m", "0", self.image)
            return problem or quiet("mount", "-o", "loop", self.image, self.path)
        except OSError as error:
            return str(error)

    def fill(self):
        """Takes every free block; returns how many bytes those were."""
        size, piece = 0, 64 * MIB
        with open(self.ballast, "wb") as file:
            while piece >= 4096:
                try:
                    os.posix_fallocate(file.fileno(), size, piece)
                    size += piece
                except OSError:
                    piece //= 2
        return size

    def free(self):
        if os.path.exists(self.ballast):
            os.unlink(self.ballast)

    def unmount(self):
        if self.mounted:
            problem = quiet("umount", self.path)
            if problem is not None:
                return problem
            self.mounted = False
        return None
