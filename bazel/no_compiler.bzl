"""A C++ toolchain for machines without a compiler: a py_test asks for one in vain."""

def _no_compiler_impl(ctx):
    return cc_common.create_cc_toolchain_config_info(
        ctx = ctx,
        abi_libc_version = "none",
        abi_version = "none",
        compiler = "none",
        host_system_name = "local",
        target_cpu = "none",
        target_libc = "none",
        target_system_name = "local",
        toolchain_identifier = "no_compiler",
    )

no_compiler_config = rule(
    implementation = _no_compiler_impl,
    provides = [CcToolchainConfigInfo],
)
