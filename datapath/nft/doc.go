// Package nft reads the objects of nftables over netlink, and lets those see them raw who
// have to do with rules of others, which may have expressions that no library knows.
package nft
