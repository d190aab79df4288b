// Package netns runs a program in network namespaces of its own, for labs and for
// tests that need a kernel.
//
// [Isolation] starts the running executable again in new user (for ordinary
// users), network, mount and PID namespaces. Everything made in there (processes,
// namespaces, rules, files under /run) disappears with the outer process, however
// that ends. Inside, [New] makes further network namespaces, which are held by
// file descriptors only and have no name in the file system.
//
// Package netnstest does the same for test binaries.
//
// It is a ground package.
package netns
