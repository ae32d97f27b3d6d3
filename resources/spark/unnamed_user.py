"""A user id that the password file does not know, as OpenShift and `docker --user` give one, and what Java needs then.

Java asks the password file for the name and the home of its user. Without a name Hadoop refuses every access to a file,
and no setting or variable names one before its login module asks. So an agent of the JVM, which runs before Spark,
logs a user in whose name is the number. The agent is compiled once a home, by the compiler that Spark has for queries.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from drainmark.jobs.errors import SparkLost

_CLASS = "UnnamedUser"
_AGENT = f"""
public final class {_CLASS} {{
    public static void premain(String options) throws Exception {{
        Class users = Class.forName("org.apache.hadoop.security.UserGroupInformation");
        Object user = users.getMethod("createRemoteUser", String.class).invoke(null, System.getProperty("user.name"));
        users.getMethod("setLoginUser", users).invoke(null, user);
    }}
}}
"""
_COMPILER = "org.codehaus.commons.compiler.samples.CompilerDemo"
_COMPILER_JARS = ("janino-*.jar", "commons-compiler-*.jar")
_MANIFEST = f"Manifest-Version: 1.0\nPremain-Class: {_CLASS}\n"
_COMPILE_SECONDS = 120.0


def user_homes() -> Iterator[Path]:
    """Yield the homes of this user: that of HOME, which Python uses, and that of the password file, which Java uses."""
    if os.environ.get("HOME"):
        yield Path(os.environ["HOME"])
    entry = _entry()
    if entry is not None:
        yield Path(entry.pw_dir)


def java_options(scratch: Path) -> str:
    """Return the options with which Java knows this user, "" if the password file knows it.

    Args:
        scratch: the folder of the agent, and the user's home if HOME is not to be written to.

    Raises:
        SparkLost: the agent could not be compiled.
    """
    java = java_program()
    if _entry() is not None or java is None:
        return ""
    agent = scratch / "unnamed-user.jar"
    if not agent.is_file():
        _compile(java, agent)
    homes = [home for home in user_homes() if os.access(home, os.W_OK)]
    home = homes[0] if homes else scratch.absolute()
    name = os.environ.get("HADOOP_USER_NAME") or str(os.getuid())
    return f'"-Duser.home={home}" "-Duser.name={name}" "-javaagent:{agent.absolute()}"'


def java_program() -> Path | None:
    """Return the Java that Spark's scripts start; None if there is none."""
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        return Path(home) / "bin" / "java"
    found = shutil.which("java")
    return None if found is None else Path(found)


def _entry() -> pwd.struct_passwd | None:
    try:
        return pwd.getpwuid(os.getuid())
    except KeyError:
        return None


def _compile(java: Path, agent: Path) -> None:
    import pyspark

    jars = Path(pyspark.__file__).parent / "jars"
    path = os.pathsep.join(str(jar) for pattern in _COMPILER_JARS for jar in jars.glob(pattern))
    agent.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="agent-", dir=agent.parent) as folder:
        source, whole = Path(folder, f"{_CLASS}.java"), Path(folder, agent.name)
        source.write_text(_AGENT, encoding="ascii")
        command = [str(java), "-cp", path, _COMPILER, "-d", folder, str(source)]
        ended = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_COMPILE_SECONDS, check=False
        )
        if not source.with_suffix(".class").is_file():
            msg = f"user id {os.getuid()} is not in the password file, and Java needs a name: {ended.stderr[-500:]}"
            raise SparkLost(msg, remedy="give the user id a line in /etc/passwd")
        with zipfile.ZipFile(whole, "w") as jar:
            jar.writestr("META-INF/MANIFEST.MF", _MANIFEST)
            jar.write(source.with_suffix(".class"), f"{_CLASS}.class")
        whole.replace(agent)
