"""A writer of zip files that takes compressed members as they are.

Python's `zipfile` cannot add a member without compressing it anew, which would make a
build take ten times as long and its bytes depend on the version of zlib. Hence the
three records of the format (APPNOTE.TXT 4.3.7, 4.3.12 and 4.3.16), written here; no
ZIP64, which a wheel of less than 4 GB and 65,535 members does not need.
"""

import struct
import zipfile
import zlib
from typing import BinaryIO, List

from build_backend.errors import BuildError

LOCAL = struct.Struct("<4s5H3L2H")
CENTRAL = struct.Struct("<4s4B4H3L5H2L")
END = struct.Struct("<4s4H2LH")
UTF8_NAME = 0x800


class ZipWriter:
    """Write members one after the other.

    Args:
        file: Where they go, open for writing and empty.
    """

    def __init__(self, file: BinaryIO):
        self._file = file
        self._central: List[bytes] = []

    def store(self, info: zipfile.ZipInfo, data: bytes) -> None:
        """Write a member as it is.

        Args:
            info: Its name, date, mode and system.
            data: Its content.
        """
        info.compress_type = zipfile.ZIP_STORED
        info.CRC = zlib.crc32(data)
        info.compress_size = info.file_size = len(data)
        self.copy(info, info.filename, data)

    def copy(self, info: zipfile.ZipInfo, name: str, packed: bytes) -> None:
        """Write a member that is packed already.

        Args:
            info: What is known of it, but for its name.
            name: Its new name.
            packed: Its content, packed.
        """
        year, month, day, hour, minute, second = info.date_time
        date = (year - 1980) << 9 | month << 5 | day
        time = hour << 11 | minute << 5 | second // 2
        encoded = name.encode("utf-8")
        flags = info.flag_bits & ~UTF8_NAME | (0 if name.isascii() else UTF8_NAME)
        common = (
            *(flags, info.compress_type, time, date),
            *(info.CRC, info.compress_size, info.file_size, len(encoded)),
        )
        offset = self._file.tell()
        version, system = info.extract_version, info.create_system
        self._file.write(LOCAL.pack(b"PK\3\4", version, *common, 0) + encoded)
        self._file.write(packed)
        self._central.append(
            CENTRAL.pack(
                *(b"PK\1\2", info.create_version, system, version, 0, *common),
                *(0, 0, 0, info.internal_attr, info.external_attr, offset),
            )
            + encoded
        )

    def finish(self) -> None:
        """Write the directory of the members, which ends the file."""
        begin, count = self._file.tell(), len(self._central)
        directory = b"".join(self._central)
        if count >= 0xFFFF or begin + len(directory) >= 0xFFFFFFFF:
            raise BuildError(f"a wheel of {count} members and {begin} bytes is too big")
        self._file.write(directory)
        self._file.write(
            END.pack(b"PK\5\6", 0, 0, count, count, len(directory), begin, 0)
        )


def packed_content(archive: bytes, info: zipfile.ZipInfo) -> memoryview:
    """Return what a member of a zip file is packed into.

    Args:
        archive: The zip file.
        info: The member, whose sizes stand before it rather than behind.
    """
    header = LOCAL.unpack_from(archive, info.header_offset)
    begin = info.header_offset + LOCAL.size + header[-2] + header[-1]
    return memoryview(archive)[begin : begin + info.compress_size]
